"""Real hosts for the tests that need some; where there can be none they are skipped by name."""

import pytest

from holdfast.schedulers.ssh.scheduler import SshScheduler
from tests.schedulers.ssh.ssh_hosts import PYTHON, SshHosts, why_not


@pytest.fixture(scope="session")
def hosts(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    made = SshHosts(tmp_path_factory.mktemp("ssh"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def cfg(hosts):
    """Run options that lead to the hosts of the tests."""
    return {"hosts": hosts.names, "ssh_config": str(hosts.config), "python": PYTHON}


@pytest.fixture
def make(hosts, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    yield lambda: SshScheduler("contract", tmp_path)
    scheduler = SshScheduler("contract", tmp_path)
    for app in scheduler.list():
        scheduler.delete(app.app_id)
    scheduler.disconnect()
    assert scheduler.list() == []
