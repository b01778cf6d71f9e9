"""Workers that hang under a real agent: they are found, explained and ended, and the job goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.failures import Kind, render
from holdfast.failures.stacks import Group, Stack
from holdfast.launcher.api import LaunchConfig, run_agent
from holdfast.timer import expires, watchdog
from holdfast.timer.hang import HangOptions
from holdfast.workers import DefaultLogsSpecs
from tests.launcher.conftest import Launch
from tests.processes import free_port
from tests.timer.conftest import Node

StartLaunch = Callable[..., Launch]
StartNode = Callable[..., Node]

TIMERS = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}

#: Ways to hang, each in a function of its own name.
HANGS = {
    "deadlock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "loop_in_c": "collections.deque(itertools.repeat(0), maxlen=0)",
}

#: Rank 1 hangs in its first attempt while rank 0 waits for it.
SCRIPT = """
import collections, itertools, os, signal, threading
from holdfast import heartbeat
from holdfast.timer import expires

def hangs_here():
    {hang}

def waits_for_the_other():
    signal.pause()

is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(1, 6):
    if is_first and step == 5:
        {around}
    heartbeat(step)
print("finished", os.environ["RANK"])
"""
UNDER_TIMER = """
        if os.environ["RANK"] == "1":
            with expires(after=0.5, scope="the step"):
                hangs_here()
        waits_for_the_other()
"""
UNDER_HEARTBEAT = """
        if os.environ["RANK"] == "1":
            hangs_here()
        heartbeat(step)
        waits_for_the_other()
"""


def script(hang: str, around: str) -> str:
    return SCRIPT.format(hang=HANGS.get(hang, hang), around=around.strip())


def functions(groups: list[dict[str, Any]]) -> dict[tuple[int, ...], str]:
    """The innermost call of the user's in each group, by its ranks."""
    found = {}
    for group in map(Group.from_json, groups):
        named = [frame.function for frame in group.stack.main if frame.function.endswith(("_here", "_other"))]
        found[group.ranks] = named[0] if named else ""
    return found


@pytest.mark.parametrize("hang", HANGS)
def test_a_worker_that_hangs_in_a_timers_scope_is_ended_and_the_job_goes_on(launch: StartLaunch, hang: str) -> None:
    running = launch("--nproc-per-node=2", "--max-restarts=1", script=script(hang, UNDER_TIMER), **TIMERS)
    code, out, err = running.end()

    assert code == 0, err
    assert sorted(out.splitlines()) == ["finished 0", "finished 1"]
    assert "rank 1: timer 'the step' of 0.5 s expired\n" in err
    assert "hangs_here" in err
    assert "waits_for_the_other" in err
    assert ("stopped by a signal" in err) == (hang == "stopped")
    assert ", 1 restart" in err


def test_a_hang_that_no_restart_answers_is_in_the_report_with_all_stacks(launch: StartLaunch) -> None:
    code, _, err = launch("--nproc-per-node=2", script=script("deadlock", UNDER_TIMER), **TIMERS).end()

    assert code == 128 + signal.SIGKILL
    told, _, report = err.partition("holdfast: failed after ")
    assert "hangs_here (" in told
    assert "waits_for_the_other (" in told
    assert " s: timer 'the step' of 0.5 s expired; it was ended by SIGKILL" in report
    assert "who      rank 1 (local rank 1" in report
    assert "hangs_here (" not in report, "the warning has told it"


def test_a_quiet_launch_tells_the_stacks_of_a_hang_with_the_report(launch: StartLaunch) -> None:
    _, _, err = launch("-q", "--nproc-per-node=2", script=script("deadlock", UNDER_TIMER), **TIMERS).end()

    assert err.startswith("holdfast: where each rank was, innermost call first:\n")
    assert "hangs_here (" in err


@pytest.mark.parametrize("hang", HANGS)
def test_a_worker_that_stops_to_beat_is_ended_and_the_job_goes_on(node: StartNode, hang: str) -> None:
    running = node(script(hang, UNDER_HEARTBEAT), {"limit_s": 2.0}, workers=2, max_restarts=1)
    told, end = running.wait_fact("hang"), running.wait_fact("end")

    assert end["data"]["exit_code"] == 0, running.facts
    assert (told["data"]["role"], told["data"]["ranks"], told["data"]["suspects"]) == ("default_role", [0, 1], [1])
    assert functions(told["data"]["stacks"]) == {(0,): "waits_for_the_other", (1,): "hangs_here"}
    assert [fact["kind"] for fact in running.facts].count("hang") == 1


def test_a_gang_that_hangs_before_its_first_beat_is_found_where_a_start_has_its_time(launch: StartLaunch) -> None:
    begins = SCRIPT.replace("is_first and step == 5", "is_first and step == 1")
    running = launch(
        "--nproc-per-node=2",
        "--max-restarts=5",
        "--hang=10m:6s",
        script=begins.format(hang=HANGS["deadlock"], around="hangs_here()"),
    )
    code, out, err = running.end()

    assert code == 0, err
    assert sorted(out.splitlines()) == ["finished 0", "finished 1"]
    assert "the limit is 6 s" in err
    assert "after 0 beats" in err
    assert "hangs_here" in err


#: A script that knows nothing of Holdfast. In its first attempt rank 1 stands still while the others wait for it.
NO_BEATS = """
import os, threading, time

def hangs_here():
    threading.Event().wait()

def waits_for_the_other():
    threading.Event().wait()

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    hangs_here() if os.environ["RANK"] == "1" else waits_for_the_other()
print("finished", os.environ["RANK"])
"""


def test_a_hang_is_found_in_a_script_that_never_beats(launch: StartLaunch) -> None:
    code, out, err = launch("--nproc-per-node=3", "--max-restarts=1", "--hang=2s", script=NO_BEATS).end()

    assert code == 0, err
    assert sorted(out.splitlines()) == ["finished 0", "finished 1", "finished 2"]
    assert "no worker computed, wrote or communicated for" in err
    assert "rank 1's stack differs from the others\nrank 1:" in err
    assert "hangs_here" in err
    assert "waits_for_the_other" in err


@pytest.mark.parametrize(
    "work",
    ["sum(range(1000))", "print(end='.', flush=True); time.sleep(0.1)"],
    ids=["computes", "writes"],
)
def test_a_gang_that_never_beats_is_left_alone_while_one_of_its_workers_does_something(
    launch: StartLaunch, work: str
) -> None:
    busy = f"""
import os, time
if os.environ["RANK"] == "0":
    until = time.monotonic() + 5
    while time.monotonic() < until:
        {work}
    open("done", "w").close()
while not os.path.exists("done"):
    time.sleep(1.5)
"""
    code, _, err = launch("--nproc-per-node=2", "--hang=3s", script=busy).end()

    assert code == 0, err
    assert "no worker has called holdfast.heartbeat(): --hang acts only when" in err
    assert "no worker computed" not in err


def test_nodes_whose_workers_wait_for_one_that_computes_elsewhere_are_left_alone(
    node: StartNode, tmp_path: Path
) -> None:
    endpoint = f"localhost:{free_port()}"
    work = f"""
import os, time
done = {str(tmp_path / "done")!r}
if os.environ["RANK"] == "0":
    until = time.monotonic() + 5
    while time.monotonic() < until:
        pass
    open(done, "w").close()
while not os.path.exists(done):
    time.sleep(1.5)
"""
    config = {"min_nodes": 2, "max_nodes": 2, "rdzv_endpoint": endpoint, "run_id": "still"}
    nodes = [node(work, {"limit_s": 1.5}, workers=1, **config) for _ in range(2)]
    ends = [each.wait_fact("end")["data"]["exit_code"] for each in nodes]

    assert ends == [0, 0]
    assert not [fact for each in nodes for fact in each.facts if fact["kind"] == "hang"]


def test_a_hang_across_nodes_is_found_in_a_script_that_never_beats(node: StartNode) -> None:
    endpoint = f"localhost:{free_port()}"
    config = {"min_nodes": 2, "max_nodes": 2, "rdzv_endpoint": endpoint, "run_id": "still", "max_restarts": 1}
    config["rdzv_configs"] = {"max_restarts": 1}
    nodes = [node(NO_BEATS, {"limit_s": 2.0}, workers=1, **config) for _ in range(2)]
    ends = [each.wait_fact("end")["data"]["exit_code"] for each in nodes]

    assert ends == [0, 0]
    assert any(fact["kind"] == "hang" for each in nodes for fact in each.facts)


def test_the_failure_of_a_silent_worker_names_its_step_and_has_all_stacks(node: StartNode) -> None:
    running = node(script("deadlock", UNDER_HEARTBEAT), {"limit_s": 2.0}, workers=2, max_restarts=0)
    end = running.wait_fact("end")["data"]
    cause = end["verdict"]["cause"]

    assert (end["exit_code"], cause["kind"], cause["rank"]) == (128 + signal.SIGKILL, "timeout", 1)
    assert "the limit is 2 s, last at step 4; it was ended by SIGKILL" in cause["message"]
    assert functions(cause["stacks"]) == {(0,): "waits_for_the_other", (1,): "hangs_here"}


def test_of_many_the_odd_one_out_is_named_and_equal_stacks_stand_together(node: StartNode) -> None:
    body = """
        heartbeat(step)
        if os.environ["RANK"] == "2":
            hangs_here()
        waits_for_the_other()
    """
    running = node(script("deadlock", body), {"limit_s": 2.0}, workers=4, max_restarts=1)
    told = running.wait_fact("hang")

    assert "rank 2's stack differs from the others\nrank 2:" in told["sentence"]
    assert functions(told["data"]["stacks"]) == {(2,): "hangs_here", (0, 1, 3): "waits_for_the_other"}
    assert running.wait_fact("end")["data"]["exit_code"] == 0


def test_a_hang_on_another_node_is_found_by_everybodys_stacks_and_blamed_on_it(node: StartNode) -> None:
    """The node that only waits notices first, and leaves it to the other to end the worker that hangs."""
    body = """
        heartbeat(step)
        if "HANGS" in os.environ and os.environ["LOCAL_RANK"] == "0":
            hangs_here()
        waits_for_the_other()
    """
    settings = {"min_nodes": 2, "max_nodes": 2, "run_id": "job", "rdzv_endpoint": f"localhost:{free_port()}"}
    common = {"workers": 2, "max_restarts": 0, **settings}
    waiting = node(script("deadlock", body), {"limit_s": 2.0}, **common)
    hanging = node(script("deadlock", body), {"limit_s": 8.0}, env={"HANGS": "1"}, **common)
    culprit = hanging.wait_fact("workers_started")["data"]["ranks"][0]
    others = tuple(rank for rank in range(4) if rank != culprit)

    for each in (waiting, hanging):
        told = each.wait_fact("hang")["data"]
        assert told["suspects"] == [culprit]
        assert functions(told["stacks"]) == {(culprit,): "hangs_here", others: "waits_for_the_other"}
    causes = [each.wait_fact("end")["data"]["verdict"]["cause"] for each in (waiting, hanging)]
    assert [(cause["rank"], cause["kind"]) for cause in causes] == [(culprit, "timeout")] * 2


def test_a_hang_that_its_own_node_does_not_see_is_broken_up_by_the_others(node: StartNode) -> None:
    body = """
        heartbeat(step)
        if "HANGS" in os.environ:
            hangs_here()
        waits_for_the_other()
    """
    settings = {"min_nodes": 2, "max_nodes": 2, "run_id": "job", "rdzv_endpoint": f"localhost:{free_port()}"}
    common = {"max_restarts": 0, **settings}
    watchful = {"HOLDFAST_TEST_ELSEWHERE_WAIT_S": "0.1"}
    waiting = node(script("deadlock", body), {"limit_s": 2.0}, workers=2, env=watchful, **common)
    hanging = node(script("deadlock", body), {"limit_s": 9999.0}, workers=1, env={"HANGS": "1"}, **common)
    culprit = hanging.wait_fact("workers_started")["data"]["ranks"][0]

    for each in (waiting, hanging):
        cause = each.wait_fact("end")["data"]["verdict"]["cause"]
        assert cause["kind"] == "victim"
        assert f"rank {culprit}'s stack differs from the others" in cause["message"]


def test_workers_that_beat_on_or_pause_are_left_alone(node: StartNode) -> None:
    body = """
        import time
        from holdfast.timer.heartbeat import pause
        if os.environ["RANK"] == "0":
            pause()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if os.environ["RANK"] == "1":
                heartbeat(step)
            signal.sigtimedwait([signal.SIGUSR1], 0.05)
    """
    running = node(script("deadlock", body), {"limit_s": 3.0}, workers=2, max_restarts=0)

    assert running.wait_fact("end")["data"]["exit_code"] == 0
    assert "hang" not in [fact["kind"] for fact in running.facts]


def test_a_worker_gets_its_timers_signal_first_and_is_not_done_even_if_it_exits_with_0(launch: StartLaunch) -> None:
    text = """
        import os, signal, sys
        from holdfast.timer import FileTimerClient, expires
        client = FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal=signal.SIGTERM)
        def leave(*_):
            print("saving")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            with expires(after=0.2, client=client):
                signal.pause()
        print("finished")
    """
    code, out, err = launch("--max-restarts=1", script=text, **TIMERS).end()

    assert (code, out) == (0, "saving\nfinished\n"), err
    assert "it then exited with code 0" in err


def test_a_timer_of_a_workers_own_child_ends_the_worker(launch: StartLaunch) -> None:
    text = """
        import os, signal
        from holdfast.timer import expires
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.fork() == 0:
                with expires(after=0.2, scope="loading"):
                    signal.pause()
            signal.pause()
        print("finished")
    """
    code, out, err = launch("--max-restarts=1", script=text, **TIMERS).end()

    assert (code, out) == (0, "finished\n"), err
    assert "rank 0: timer 'loading' of 0.2 s expired" in err


def test_a_request_for_a_process_that_is_no_worker_does_no_harm(launch: StartLaunch) -> None:
    text = """
        import os, signal
        from holdfast.timer import FileTimerRequest, expires
        agent = os.getppid()
        with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as pipe:
            for pid in (agent, 1, *map(int, open(f"/proc/{agent}/task/{agent}/children").read().split())):
                if pid != os.getpid():
                    pipe.write(FileTimerRequest(pid, "hostile", 1.0, 9).to_json() + "\\n")
            pipe.write("garbage")
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            with expires(after=0.5):
                signal.pause()
        print("finished")
    """
    code, out, err = launch("--max-restarts=1", script=text, **TIMERS).end()

    assert (code, out) == (0, "finished\n"), err
    assert "hostile" not in err


def test_a_timer_without_a_signal_is_reported_and_the_worker_goes_on(launch: StartLaunch) -> None:
    text = """
        import os, signal
        from holdfast.timer import FileTimerClient, expires
        signal.signal(signal.SIGUSR1, lambda *_: None)
        with expires(after=0.1, scope="soft", client=FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], 0)):
            print("pid", os.getpid())
            signal.pause()
        print("finished")
    """
    running = launch(script=text, **TIMERS)
    pid = int(running.wait_line("pid").split()[1])
    assert running.process.stderr is not None
    assert any("timer 'soft' of 0.1 s expired" in line for line in running.process.stderr)
    os.kill(pid, signal.SIGUSR1)
    code, out, _ = running.end()

    assert (code, out.splitlines()[-1]) == (0, "finished")


@pytest.mark.parametrize("named", [True, False])
def test_the_pipe_has_the_name_that_was_given_or_a_fresh_one_and_goes_away(
    launch: StartLaunch, tmp_path: Path, named: bool
) -> None:
    given = {"TORCHELASTIC_TIMER_FILE": str(tmp_path / "given")} if named else {}
    text = """
        import os, stat
        path = os.environ["TORCHELASTIC_TIMER_FILE"]
        print(path, stat.S_ISFIFO(os.stat(path).st_mode))
    """
    code, out, err = launch(script=text, TMPDIR=str(tmp_path), **TIMERS, **given).end()
    path, is_pipe = out.split()

    assert (code, is_pipe) == (0, "True"), err
    assert (path == str(tmp_path / "given")) == named
    assert not Path(path).exists()
    assert not list(tmp_path.glob("holdfast_timer_*"))


def test_without_the_variable_there_is_no_pipe(launch: StartLaunch) -> None:
    text = "import os; print(os.environ.get('TORCHELASTIC_TIMER_FILE'))"

    assert launch(script=text).end()[1] == "None\n"


@pytest.mark.torch
def test_a_script_written_for_torchelastics_timers_runs_unchanged(launch: StartLaunch) -> None:
    pytest.importorskip("torch")
    text = """
        import os, signal
        from torch.distributed.elastic import timer
        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            with timer.expires(after=0.5, scope="all_reduce"):
                signal.pause()
        print("finished")
    """
    code, out, err = launch("--max-restarts=1", script=text, **TIMERS).end()

    assert (code, out) == (0, "finished\n"), err
    # torch's client says when it expires, not how long it runs: that is counted from when the watchdog read it.
    assert re.search(r"timer 'all_reduce' of \S+ s expired", err), err


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchConfig:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    return LaunchConfig(
        1, 1, 1, rdzv_endpoint="localhost:0", max_restarts=0, logs_specs=DefaultLogsSpecs(str(tmp_path))
    )


def hang_in_a_scope() -> None:
    with expires(after=0.1, scope="the step"):
        signal.pause()


def test_a_worker_that_cannot_be_ended_does_not_hold_up_the_agent(
    config: LaunchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the kernel held the worker: the watchdog's signals do nothing."""
    monkeypatch.setattr(watchdog, "KILL_WAIT_S", 0.05)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)

    report = run_agent(config, hang_in_a_scope, [])

    assert report.verdict is not None
    assert report.verdict.cause.kind is Kind.TIMEOUT
    assert "it could not be ended: the kernel holds it" in report.verdict.cause.message
    assert report.verdict.cause.stacks


def test_functions_have_timers_too_and_nothing_is_left_in_the_environment(config: LaunchConfig) -> None:
    report = run_agent(config, hang_in_a_scope, [])

    assert report.verdict is not None
    assert (report.verdict.cause.kind, report.exit_code) == (Kind.TIMEOUT, 128 + signal.SIGKILL)
    assert "hang_in_a_scope" in render(report.verdict)
    assert "TORCHELASTIC_TIMER_FILE" not in os.environ


def test_the_watchdog_tells_when_it_last_moved(tmp_path: Path) -> None:
    dog = watchdog.Watchdog("run", "default", timers=True, hang=HangOptions())
    try:
        assert dog.get_last_progress_time() == pytest.approx(time.time(), abs=30)
    finally:
        dog.close()


def test_other_nodes_that_cannot_be_asked_cost_only_their_own_stacks() -> None:
    def gather(local: dict[int, Stack]) -> dict[int, Stack]:
        raise ConnectionError("nobody is there")

    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    dog = watchdog.Watchdog("run", "default", hang=HangOptions(), gather=gather)
    warnings: list[str] = []
    stop = facts.listen(lambda fact: warnings.append(fact.sentence))
    try:
        dog.watch([(0, 4, process.pid, "")])
        assert {rank: stack.pid for rank, stack in dog._take_stacks().items()} == {4: process.pid}
    finally:
        stop()
        dog.close()
        process.kill()
        process.wait()

    assert "nobody is there" in warnings[0]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="more than 0"):
        watchdog.Watchdog("run", "default", hang=HangOptions(limit_s=0))
