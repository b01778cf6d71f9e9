"""What jobs do on real hosts, beyond the contract."""

import subprocess
import sys
import time

import psutil
import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers.ssh.scheduler import SshScheduler
from holdfast.specs import AppDef, AppState, Role, is_terminal
from tests.schedulers.acceptance import only_in_test_clusters

PATIENCE_S = 240.0


class Bench:
    """One session of jobs on the hosts."""

    def __init__(self, home, cfg):
        self.scheduler = SshScheduler("test", home)
        self.cfg = cfg

    def submit(self, script, cfg=None, **role):
        main = Role("main", "", entrypoint="sh", args=["-c", script], **role)
        return self.scheduler.submit(AppDef("job", [main]), {**self.cfg, **(cfg or {})})

    def wait(self, app_id):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.scheduler.describe(app_id)
            if is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, f"still {found}"
            self.scheduler.wait_news(app_id, 1.0)

    def lines(self, app_id, k=0):
        return list(self.scheduler.log_iter(app_id, "main", k))


@pytest.fixture
def bench(hosts, cfg, tmp_path):
    made = Bench(tmp_path / "home", cfg)
    yield made
    for app in made.scheduler.list():
        made.scheduler.delete(app.app_id)
    made.scheduler.disconnect()


def test_each_replica_runs_on_its_host_and_knows_the_first(bench, hosts):
    app_id = bench.submit("echo $$TEST_HOST $$TORCHX_RANK0_HOST ${app_id}", num_replicas=2)
    found = bench.wait(app_id)

    assert [each.hostname for each in found.roles_statuses[0].replicas] == ["h0", "h1"]
    assert [bench.lines(app_id, k) for k in (0, 1)] == [[f"h{k} {hosts.address('h0')} {app_id}"] for k in (0, 1)]


def test_the_secret_travels_and_is_seen_nowhere(bench, hosts, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", "a-secret-of-32-letters-or-more-for-a-test")
    app_id = bench.submit("cat $$HOLDFAST_SECRET_FILE; stat -c %a $$HOLDFAST_SECRET_FILE; sleep 600")
    lines = bench.scheduler.log_iter(app_id, "main", should_tail=True)

    assert [next(iter(lines)), next(iter(lines))] == ["a-secret-of-32-letters-or-more-for-a-test", "600"]
    commands = [str(each.info["cmdline"]) for each in psutil.process_iter(["cmdline"])]
    environs = [str(each.environ()) for name in hosts.names for each in hosts.processes(name)]
    assert len(environs) > 2
    assert not any("a-secret-of-32" in text for text in [*commands, *environs])


def test_hosts_that_cannot_be_reached_are_told_and_nothing_is_started(bench, hosts):
    with pytest.raises(UnavailableError, match=r"nowhere cannot be reached: .*resolve"):
        bench.submit("echo", {"hosts": ["h0", "nowhere"]}, num_replicas=2)
    assert bench.scheduler.list() == []
    assert hosts.job_processes() == []


def test_an_elastic_job_starts_without_a_host_that_cannot_be_reached(bench):
    app_id = bench.submit("echo ${replica_id}", {"hosts": ["nowhere", "h0", "h1"]}, num_replicas=3, min_replicas=2)

    assert [each.hostname for each in bench.wait(app_id).roles_statuses[0].replicas] == ["h0", "h1"]


def test_a_python_that_is_not_there_is_told(bench):
    with pytest.raises(UsageError, match="h0 has no '/no/python'"):
        bench.submit("echo", {"python": "/no/python"})


def test_a_job_goes_on_when_this_machine_is_switched_off(bench):
    app_id = bench.submit("sleep 1; echo done")
    bench.scheduler.disconnect()
    later = SshScheduler("test", bench.scheduler._home)

    assert list(later.log_iter(app_id, "main", should_tail=True)) == ["done"]
    assert later.describe(app_id).state is AppState.SUCCEEDED
    later.disconnect()


@only_in_test_clusters
def test_holdfast_travels_to_hosts_that_do_not_have_it(bench, hosts, tmp_path):
    bare = tmp_path / "bare"
    base = f"{sys.base_prefix}/bin/python3"
    subprocess.run([base, "-m", "venv", "--without-pip", str(bare)], check=True)
    program = "python -c 'import holdfast; print(holdfast.__file__)'; "
    program += "python -m holdfast launch --nproc-per-node 1 --no-python echo up"
    app_id = bench.submit(program, {"python": f"{bare}/bin/python"})

    assert bench.wait(app_id).state is AppState.SUCCEEDED, bench.lines(app_id)
    first, *others = bench.lines(app_id)
    assert first.startswith(str(hosts.folder / "home.h0" / "packages"))
    assert "up" in others
