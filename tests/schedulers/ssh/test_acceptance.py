"""The acceptance run on real hosts."""

import pytest

from holdfast.schedulers.ssh.scheduler import SshScheduler
from tests.schedulers import acceptance
from tests.schedulers.ssh.ssh_hosts import PYTHON

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


@pytest.fixture
def shell(hosts, tmp_path):
    """Return a shell for jobs on the first three hosts."""
    options = ["--hosts", "h0,h1,h2", "-cfg", f"ssh_config={hosts.config},python={PYTHON}"]
    home = tmp_path / "home"
    yield acceptance.Shell(tmp_path, "ssh", options, home)
    scheduler = SshScheduler("holdfast", home)
    for app in scheduler.list():
        scheduler.delete(app.app_id)
    scheduler.disconnect()


def test_a_killed_host_costs_no_step(shell, hosts):
    try:
        acceptance.survives_a_killed_node(shell, hosts.kill_host)
    finally:
        hosts.revive_host("h2")


def test_a_killed_coordinator_costs_no_step(shell, hosts):
    try:
        acceptance.survives_a_killed_coordinator(shell, hosts.kill_host, retries=0, lines_die=True)
    finally:
        hosts.revive_host("h0")


def test_a_cancel_leaves_nothing(shell, hosts):
    acceptance.a_cancel_leaves_nothing(shell, hosts.job_processes)


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
