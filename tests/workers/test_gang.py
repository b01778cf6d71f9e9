"""The gang: real processes, real signals, and a count of who is left after every scenario."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.failures import Kind
from holdfast.workers import DefaultLogsSpecs, Gang, LogOptions, Module, Program, Script, Std, WorkerPlan, aio
from holdfast.workers.strays import descendants

FOREVER = """
    import signal, sys
    print("ready", flush=True)
    while True:
        signal.pause()
"""


def test_exit_codes_are_exact(start, script, wait_all):
    path = script("import os, sys; sys.exit([0, 7, 255][int(os.environ['RANK'])])")

    exits = wait_all(start(path, 3))

    assert {rank: exited.exit_code for rank, exited in exits.items()} == {0: 0, 1: 7, 2: 255}
    assert not any(exited.signalled_by_us for exited in exits.values())


def test_a_killed_worker_is_reported_with_its_signal_while_others_run_on(start, script, console):
    gang = start(script(FOREVER), 2)
    console.wait_line(b"[0]ready", b"[1]ready")

    os.kill(gang.pids()[1], signal.SIGKILL)
    [exited] = gang.wait_exits(60)

    assert (exited.local_rank, exited.exit_code, exited.signalled_by_us) == (1, -9, False)
    assert gang.running() == [0]
    assert gang.failure(exited).kind is Kind.SIGNAL


def test_workers_that_obey_sigterm_are_stopped_and_known_as_stopped_by_us(start, script, console):
    gang = start(script(FOREVER), 2)
    console.wait_line(b"[0]ready", b"[1]ready")

    report = gang.stop(signal.SIGTERM, 30)

    assert report.sentence == "all workers have ended"
    exits = gang.take_exits()
    assert {exited.exit_code for exited in exits} == {-15}
    assert all(exited.signalled_by_us for exited in exits)
    assert {gang.failure(exited).kind for exited in exits} == {Kind.STOPPED}


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(start, script, console):
    gang = start(
        script(
            """
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready", flush=True)
            while True:
                signal.pause()
            """
        )
    )
    console.wait_line(b"ready")

    report = gang.stop(signal.SIGTERM, 0.2)

    assert "was killed" in report.sentence
    assert gang.exits()[0].exit_code == -9


def test_a_frozen_worker_hears_sigterm(start, script, console):
    gang = start(script(FOREVER))
    console.wait_line(b"ready")
    os.kill(gang.pids()[0], signal.SIGSTOP)

    report = gang.stop(signal.SIGTERM, 30)

    assert report.sentence == "all workers have ended"
    assert gang.exits()[0].exit_code == -15


def test_a_second_request_can_kill_at_once(start, script, console):
    gang = start(script(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_flat(FOREVER)}"))
    console.wait_line(b"ready")

    gang.ask_stop(signal.SIGTERM, 1000)
    report = gang.stop(signal.SIGKILL)

    assert "was killed" in report.sentence


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize("worker_dies_first", [False, True])
def test_grandchildren_are_ended_too(start, script, console, wait_gone, new_session, worker_dies_first):
    gang = start(
        script(
            f"""
            import subprocess, sys, signal, textwrap
            child = '''
            import os, signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("child", os.getpid(), flush=True)
            signal.pause()
            '''
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)], start_new_session={new_session})
            while True:
                signal.pause()
            """
        )
    )
    grandchild = int(console.wait_line(b"child").split()[-1])
    if worker_dies_first:
        os.kill(gang.pids()[0], signal.SIGKILL)
        assert gang.wait_exits(60)

    gang.stop(signal.SIGTERM, 0.2)

    assert grandchild not in descendants(os.getpid())
    wait_gone([grandchild])


def test_a_daemon_that_lost_its_parents_is_ended_with_the_gang(start, script, console, wait_gone):
    gang = start(
        script(
            """
            import os, signal
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    print("daemon", os.getpid(), flush=True)
                    signal.pause()
                os._exit(0)
            os.wait()
            """
        )
    )
    daemon = int(console.wait_line(b"daemon").split()[-1])
    assert gang.wait_exits(60)[0].exit_code == 0

    gang.close()

    wait_gone([daemon])


@pytest.mark.parametrize("warm", [False, True])
def test_when_the_agent_is_killed_workers_and_grandchildren_die(tmp_path, script, marked, wait_gone, warm):
    marker = f"HF_TEST_MARK={uuid.uuid4().hex}"
    worker = script(
        """
        import os, signal, subprocess, sys
        say = "import os, signal; os.write(1, b'%d ' % os.getpid() + bytes([10])); signal.pause()"
        for new_session in (False, True):
            subprocess.Popen([sys.executable, "-c", say], start_new_session=new_session)
        os.write(1, b"%d " % os.getpid() + bytes([10]))
        while True:
            signal.pause()
        """
    )
    agent = script(
        f"""
        import os, signal
        from holdfast.workers import Gang, Script, Template, WorkerPlan
        template = Template(["json"]) if {warm} else None
        assert template is None or template.wait_ready(240)
        gang = Gang([WorkerPlan(rank, Script({worker!r})) for rank in range(2)], template=template)
        gang.start()
        os.write(1, b"%d " % os.getpid() + bytes([10]))  # one write: the others write here too
        signal.pause()
        """,
        "agent.py",
    )
    name, _, value = marker.partition("=")
    process = subprocess.Popen(
        [sys.executable, agent], stdout=subprocess.PIPE, env={**os.environ, name: value}, cwd=tmp_path
    )
    with process:
        assert process.stdout is not None
        try:
            said = {int(process.stdout.readline()) for _ in range(7)}
            alive = said | set(marked(marker))
        finally:
            process.kill()

    assert len(said) == 7
    wait_gone(alive)
    assert not marked(marker)


def test_a_worker_started_from_a_thread_that_ends_lives_on(start, script, console):
    import threading

    gangs = []
    thread = threading.Thread(target=lambda: gangs.append(start(script(FOREVER))))
    thread.start()
    thread.join()

    console.wait_line(b"ready")
    assert gangs[0].wait_exits(0.05) == []
    assert gangs[0].running() == [0]


def test_what_cannot_be_started_is_said_and_nothing_is_left(tmp_path, script):
    plans = [WorkerPlan(0, Script(script(FOREVER))), WorkerPlan(1, Program(("/no/such/program",)))]
    gang = Gang(plans)

    with pytest.raises(UsageError, match="/no/such/program"):
        gang.start()

    assert gang.running() == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_gang_fits_into_an_event_loop(start, script, console, loop):
    gang = start(script(FOREVER), 2)

    async def scenario():
        await asyncio.to_thread(console.wait_line, b"[0]ready", b"[1]ready")
        os.kill(gang.pids()[0], signal.SIGKILL)
        [exited] = await aio.wait_exits(gang)
        report = await aio.stop(gang, signal.SIGTERM, 30)
        return exited, report, gang.take_exits()

    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        exited, report, rest = runner.run(scenario())

    assert (exited.local_rank, exited.exit_code) == (0, -9)
    assert report.stuck == ()
    assert [(other.local_rank, other.exit_code) for other in rest] == [(1, -15)]


def test_signals_can_be_passed_on_without_a_stop(start, script, console, wait_all):
    gang = start(
        script(
            """
            import signal
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            print("ready", flush=True)
            signal.sigwait({signal.SIGUSR1})
            print("warned", flush=True)
            """
        )
    )
    console.wait_line(b"ready")

    gang.send(signal.SIGUSR1)
    console.wait_line(b"warned")

    assert wait_all(gang)[0].exit_code == 0


def test_an_uncaught_exception_becomes_a_failure_with_its_traceback(start, script, wait_all):
    path = script("def f():\n    raise ValueError('bad')\nprint('start')\nf()\n")

    gang = start(path, env={"HOLDFAST_ROUND": "4", "TORCHELASTIC_RESTART_COUNT": "2", "GROUP_RANK": "5"})
    failure = gang.failure(wait_all(gang)[0])

    assert (failure.kind, failure.message) == (Kind.EXCEPTION, "ValueError: bad")
    assert (failure.round, failure.attempt, failure.node, failure.rank) == (4, 2, 5, 0)
    assert failure.traceback.splitlines()[-1] == "ValueError: bad"
    assert failure.log_lines[-1] == "ValueError: bad"
    assert [Path(file).name for file in failure.log_files] == ["stdout.log", "stderr.log"]


@pytest.mark.parametrize("redirects", [Std.NONE, Std.ALL])
def test_a_fatal_signal_leaves_the_python_stack(start, script, wait_all, redirects):
    path = script("import os, signal\ndef deep():\n    os.kill(os.getpid(), signal.SIGSEGV)\ndeep()\n")

    gang = start(path, redirects=redirects, tee=Std.NONE)
    failure = gang.failure(wait_all(gang)[0])

    assert (failure.kind, failure.exit_code) == (Kind.SIGNAL, -11)
    story = failure.traceback if redirects is Std.NONE else "\n".join(failure.log_lines)
    assert "in deep" in story


def test_without_log_files_a_failure_still_has_its_traceback(script, wait_all, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    envs = {0: {"RANK": "0"}}
    dest = DefaultLogsSpecs(os.devnull, redirects=Std.ALL).reify(envs)
    with Gang([WorkerPlan(0, Script(script("1 / 0")), envs[0])], dest) as gang:
        gang.start()
        failure = gang.failure(wait_all(gang)[0])

    assert failure.message == "ZeroDivisionError: division by zero"
    assert failure.log_lines[-1] == "ZeroDivisionError: division by zero"
    assert not list(tmp_path.glob("holdfast_gang_*")), "the private folder went with the gang"


def test_the_last_unterminated_line_of_a_killed_worker_is_kept(start, script, console, wait_all):
    gang = start(script("import os; os.write(1, b'one\\nhalf a li'); os.kill(os.getpid(), 9)"))

    failure = gang.failure(wait_all(gang)[0])

    assert failure.log_lines == ("one", "half a li")
    assert console.lines == [b"[0]one", b"[0]half a li"]


def test_a_grandchild_that_keeps_the_pipe_open_blocks_nothing(start, script, console, wait_all):
    gang = start(
        script(
            """
            import os, signal
            if os.fork() == 0:
                signal.pause()
            os.write(2, b"no newline")
            os._exit(3)
            """
        )
    )

    failure = gang.failure(wait_all(gang)[0])
    gang.close()

    assert failure.log_lines == ("no newline",)


def test_only_redirected_streams_go_straight_to_their_files(start, script, wait_all, console):
    gang = start(script("print('hello'); raise SystemExit('goodbye')"), tee=Std.NONE)

    failure = gang.failure(wait_all(gang)[0])

    assert Path(failure.log_files[0]).read_text() == "hello\n"
    assert failure.log_lines == ("goodbye",)
    assert (failure.kind, failure.message) == (Kind.EXIT, "SystemExit: goodbye")
    assert console.lines == []


def test_filters_copy_lines_of_all_workers_to_one_file(start, script, wait_all, tmp_path):
    gang = start(script("print('loss', 3); print('noise')"), 2, stdout_filters=["loss"])
    wait_all(gang)
    gang.close()

    [path] = (tmp_path / "logs").glob("*/attempt_0/filtered_stdout.log")
    assert sorted(path.read_text().splitlines()) == ["[0]loss 3", "[1]loss 3"]


def test_a_flood_of_output_is_kept_within_its_limit(start, script, wait_all, tmp_path):
    gang = start(script("for n in range(200000): print(n)"), bytes_max=100_000)
    assert wait_all(gang)[0].exit_code == 0
    gang.close()

    files = list((tmp_path / "logs").glob("*/attempt_0/0/stdout.log*"))
    assert sum(path.stat().st_size for path in files) <= 100_000
    assert (tmp_path / "logs").glob("*")
    newest = next(path for path in files if path.name == "stdout.log")
    assert newest.read_text().endswith("199999\n")


def test_inherited_streams_are_the_agents_own(script, wait_all, capfd):
    with Gang([WorkerPlan(0, Script(script("print('to the terminal')")))]) as gang:
        gang.start()
        wait_all(gang)

    assert capfd.readouterr().out == "to the terminal\n"


def test_the_environment_folder_and_arguments_arrive(start, script, console, tmp_path, wait_all):
    (tmp_path / "elsewhere").mkdir()
    path = script("import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['COLOUR'])")

    wait_all(start(Script(path, ("--x", "a b")), env={"COLOUR": "red"}, cwd=str(tmp_path / "elsewhere")))

    console.wait_line(f"{tmp_path}/elsewhere ['--x', 'a b'] red".encode())


def test_each_worker_leads_its_own_session(start, script, console, wait_all):
    wait_all(start(script("import os; print(os.getsid(0) == os.getpgrp() == os.getpid())"), 2))

    console.wait_line(b"[0]True", b"[1]True")


def test_a_program_runs_as_it_is(start, wait_all, console):
    exits = wait_all(start(Program(("/bin/sh", "-c", "echo plain; exit 5"))))

    assert exits[0].exit_code == 5
    console.wait_line(b"[0]plain")


def test_a_module_runs_with_dash_m(start, script, wait_all, console, tmp_path):
    script("import sys; print(__name__, __spec__.name, sys.argv[1:])", "some_module.py")

    wait_all(start(Module("some_module", ("x",)), cwd=str(tmp_path)))

    console.wait_line(b"[0]__main__ some_module ['x']")


def test_a_gang_that_is_never_closed_warns():
    gang = Gang([WorkerPlan(0, Program(("/bin/true",)))], options=LogOptions())
    gang.start()
    with pytest.warns(ResourceWarning, match="never closed"):
        gang.__del__()
    gang.close()


def test_a_waiting_gang_answers_when_its_time_is_over(start, script, console):
    gang = start(script(FOREVER))
    console.wait_line(b"ready")
    began = time.monotonic()

    assert gang.wait_exits(0.05) == []

    assert time.monotonic() - began >= 0.05


def test_an_agent_killed_by_oom_counters_calls_it_by_its_name(start, script, console, monkeypatch):
    counts = iter([3, 4])
    monkeypatch.setattr("holdfast.workers.postmortem.oom_kills", lambda: next(counts))
    gang = start(script(FOREVER))
    console.wait_line(b"ready")

    os.kill(gang.pids()[0], signal.SIGKILL)
    [exited] = gang.wait_exits(60)

    assert gang.failure(exited).kind is Kind.OUT_OF_MEMORY


def _flat(text):
    import textwrap

    return textwrap.dedent(text)
