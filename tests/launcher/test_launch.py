"""`holdfast launch` with real processes: starting, failing, restarting, signals, output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch
from tests.processes import free_port

StartLaunch = Callable[..., Launch]

WAIT_FOR_EVER = """
    import os, signal, time
    print("ready", os.environ["RANK"], os.getpid())
    while True:
        signal.pause()
"""


def test_workers_run_with_their_ranks_and_arguments(launch: StartLaunch) -> None:
    script = """
        import os, sys
        print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:])
    """
    code, out, err = launch("--nproc_per_node=2", script=script, args=("--lr", "0.1", "--nproc_per_node=9")).end()

    assert code == 0, err
    assert sorted(out.splitlines()) == [f"rank {rank} of 2 ['--lr', '0.1', '--nproc_per_node=9']" for rank in (0, 1)]
    assert "2 workers, 0 restarts" in err


@pytest.mark.parametrize(("body", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("1/0", 1)])
def test_the_exit_code_is_that_of_the_root_cause(launch: StartLaunch, body: str, code: int) -> None:
    got, _, err = launch("--nproc-per-node", "2", script=f"import os, sys\nif os.environ['RANK'] == '1': {body}").end()

    assert got == code
    assert "rank 1 (local rank 1" in err


def test_a_traceback_is_reported_without_a_decorator(launch: StartLaunch) -> None:
    _, _, err = launch("--tee", "3", script="def train():\n    raise ValueError('no data')\ntrain()").end()

    assert err.count("in train") == 1, "the worker's own output has it; the report does not repeat it"
    assert re.search(r"^holdfast: failed after [\d.]+ s: ValueError: no data$", err, re.MULTILINE)
    # Where it takes long to stop the worker, the screen says meanwhile that it does, and why.
    told = [line for line in err.splitlines() if "stopping workers" not in line]
    assert sum("ValueError: no data" in line for line in told) == 2


@pytest.mark.parametrize("redirect", ["--redirects=3", "--local-ranks-filter=1"])
def test_a_traceback_that_went_to_a_file_is_in_the_report(launch: StartLaunch, redirect: str) -> None:
    _, _, err = launch(redirect, script="def train():\n    raise ValueError('no data')\ntrain()").end()

    assert err.count("in train") == 1


def test_a_traceback_that_python_did_not_print_is_in_the_report(launch: StartLaunch) -> None:
    script = "import sys\nsys.excepthook = lambda *_: None\ndef train():\n    raise ValueError('no data')\ntrain()"
    _, _, err = launch(script=script).end()

    assert err.count("in train") == 1


def test_a_traceback_is_told_once_where_the_program_left_its_error_file_itself(launch: StartLaunch) -> None:
    script = """
        from holdfast.failures import record
        @record
        def train():
            raise ValueError("no data")
        train()
    """
    _, _, err = launch(script=script).end()

    assert err.count("Traceback") == 1


def test_the_end_of_a_failed_launch_says_where_the_logs_are(launch: StartLaunch, tmp_path: Path) -> None:
    _, _, err = launch("--log-dir", "logs", "--tee", "3", script="raise ValueError").end()

    label, folder = err.splitlines()[-1].split()
    assert label == "logs"
    assert folder.startswith(str(tmp_path / "logs"))
    assert (Path(folder) / "stderr.log").exists()


def test_an_exception_without_a_text_leaves_no_bare_colon(launch: StartLaunch) -> None:
    _, _, err = launch(script="raise MemoryError").end()

    assert re.search(r"^holdfast: failed after [\d.]+ s: MemoryError$", err, re.MULTILINE)


def test_restarts_go_on_until_it_works_and_are_counted(launch: StartLaunch) -> None:
    script = """
        import os, sys
        count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", count, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], "rank", os.environ["RANK"])
        if count < 2 and os.environ["RANK"] == "1":
            sys.exit(3)
    """
    code, out, err = launch("--nproc-per-node", "2", "--max-restarts", "3", script=script).end()

    assert code == 0, err
    assert "attempt 2 of 3 rank 1" in out
    assert "attempt 3" not in out
    assert "2 workers, 2 restarts" in err


def test_a_spent_budget_ends_with_the_last_failure(launch: StartLaunch) -> None:
    code, out, err = launch("--max-restarts", "2", script="import sys; print('try'); sys.exit(5)").end()

    assert (code, out.count("try")) == (5, 3)
    assert "all 2 restarts are used" in err


def test_two_nodes_restart_together_and_print_the_same_verdict(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        print("round", os.environ["HOLDFAST_ROUND"], "group", os.environ["GROUP_RANK"])
        meet = "round-" + os.environ["HOLDFAST_ROUND"]
        if os.environ["RANK"] == "1":
            open(meet).close()  # until the other one has printed its line too
            sys.exit(9)
        open(meet, "w").close()
        signal.pause()
    """
    for number in (1, 2):
        os.mkfifo(tmp_path / f"round-{number}")
    common = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--max-restarts", "1")
    port = free_port()
    nodes = [launch(*common, "--rdzv-endpoint", f"localhost:{port}", script=script) for _ in range(2)]

    ends = [node.end() for node in nodes]

    assert [code for code, _, _ in ends] == [9, 9]
    for _, out, err in ends:
        assert out.count("round 1") == out.count("round 2") == 1
        assert "rank 1 (local rank 0" in err
    verdicts = {re.search(r"who +(rank 1 .*)", err)[1] for _, _, err in ends}  # type: ignore[index]
    assert len(verdicts) == 1


def test_sigterm_reaches_the_workers_and_the_exit_code_says_so(launch: StartLaunch) -> None:
    script = """
        import os, signal, sys, time
        # Not print: the signal may come while the other print has not returned yet, and Python refuses that.
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"saving %s\\n" % os.environb[b"RANK"]), sys.exit(0)))
        print("ready")
        while True:
            signal.pause()
    """
    running = launch("--nproc-per-node", "2", script=script)
    running.wait_line("ready")
    running.wait_line("ready")
    running.signal(signal.SIGTERM)
    code, out, err = running.end()

    assert code == 143
    assert "saving 0" in out
    assert "saving 1" in out, err
    assert "Traceback" not in err
    assert "SIGTERM" in err


def test_ctrl_c_while_nodes_gather_ends_at_once_without_a_traceback(launch: StartLaunch) -> None:
    waiting = launch("--nnodes=2", "--rdzv-backend=holdfast", f"--rdzv-endpoint=localhost:{free_port()}", script="pass")
    assert waiting.process.stderr is not None
    assert any("1 of 2 nodes" in line for line in waiting.process.stderr)
    waiting.signal(signal.SIGINT)
    code, _, err = waiting.end()

    assert code == 130
    assert "Traceback" not in err


def test_a_second_ctrl_c_kills_workers_that_do_not_listen(launch: StartLaunch) -> None:
    script = """
        import signal
        signal.signal(signal.SIGINT, lambda *_: print("no"))
        print("ready")
        while True:
            signal.pause()
    """
    stubborn = launch("--shutdown-timeout", "600", script=script)
    stubborn.wait_line("ready")
    stubborn.signal(signal.SIGINT)
    stubborn.wait_line("no")
    stubborn.signal(signal.SIGINT)

    assert stubborn.end()[0] == 130


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(launch: StartLaunch) -> None:
    script = """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        print("ready")
        signal.sigwait({signal.SIGUSR1})
    """
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = launch("--forward-signals", "USR1", script=script)
    finally:
        signal.signal(signal.SIGHUP, previous)
    running.wait_line("ready")
    running.signal(signal.SIGHUP)
    running.signal(signal.SIGUSR1)

    assert running.end()[0] == 0


def test_forwarded_signals_reach_the_workers_and_end_nothing(launch: StartLaunch) -> None:
    script = """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        print("ready")
        signal.sigwait({signal.SIGUSR1})
        print("time is short")
    """
    running = launch("--forward-signals", "USR1", script=script)
    running.wait_line("ready")
    running.signal(signal.SIGUSR1)

    assert running.end()[:2] == (0, "ready\ntime is short\n")


def test_workers_die_with_an_agent_that_is_killed(launch: StartLaunch) -> None:
    running = launch("--nproc-per-node", "2", script=WAIT_FOR_EVER)
    pids = [int(running.wait_line("ready").split()[-1]) for _ in range(2)]
    fds = [os.pidfd_open(pid) for pid in pids]
    running.signal(signal.SIGKILL)

    import select

    for fd in fds:
        assert select.select([fd], [], [])[0] == [fd]
        os.close(fd)


def test_a_lost_node_costs_the_others_a_round_and_no_more(launch: StartLaunch) -> None:
    script = """
        import os, signal
        print("round", os.environ["HOLDFAST_ROUND"], "world", os.environ["WORLD_SIZE"])
        if os.environ["HOLDFAST_ROUND"] == "1":
            signal.pause()
    """
    common = ("--nnodes=1:2", "--rdzv-backend=holdfast", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=job")
    patient = ("--last-call=10m", "--rdzv-conf=quiet=10m")  # one may start much later than the other
    nodes = [launch(*common, *patient, script=script) for _ in range(2)]
    for node in nodes:
        assert node.wait_line("round 1") == "round 1 world 2"

    nodes[0].signal(signal.SIGKILL)

    assert nodes[1].wait_line("round 2") == "round 2 world 1"
    assert nodes[1].end()[0] == 0


def test_a_new_node_is_let_in_and_both_go_on(launch: StartLaunch) -> None:
    script = """
        import os, signal
        print("world", os.environ["WORLD_SIZE"])
        if os.environ["WORLD_SIZE"] == "1":
            signal.pause()
    """
    common = ("--nnodes=1:2", "--rdzv-backend=holdfast", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=job")
    first = launch(*common, "--last-call=100ms", script=script)
    first.wait_line("world 1")
    second = launch(*common, "--last-call=100ms", script=script)

    assert first.wait_line("world 2")
    assert second.wait_line("world 2")
    assert first.end()[0] == second.end()[0] == 0


@pytest.mark.parametrize("preload", ["none", "json"])
def test_lines_of_workers_that_share_a_stream_do_not_mix(launch: StartLaunch, preload: str) -> None:
    script = """
        import os
        for number in range(500):
            print("rank", os.environ["RANK"], "line", number)
    """
    code, out, _ = launch("--nproc-per-node", "4", "--preload", preload, script=script).end()

    assert code == 0
    assert sorted(out.splitlines()) == sorted(
        f"rank {rank} line {number}" for rank in range(4) for number in range(500)
    )


def test_a_module_and_a_program(launch: StartLaunch, tmp_path: Path) -> None:
    (tmp_path / "my_train.py").write_text("import sys; print(__name__, sys.argv[1:])")

    assert launch("-m", "my_train", "x").end()[1] == "__main__ ['x']\n"
    assert launch("--no-python", "echo", "rank=${local_rank}", "$$").end()[1] == "rank=0 $$\n"


def test_warm_workers_are_what_exec_would_have_made(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import json, os, sys
        print(json.dumps([__name__, sys.argv[1:], os.path.basename(__file__), sys.path[0], os.environ["RANK"]]))
    """
    cold = launch("--preload", "none", script=script, args=("a", "b")).end()
    warm = launch("--preload", "json,decimal", script=script, args=("a", "b")).end()

    assert warm[0] == cold[0] == 0, warm[2]
    assert json.loads(warm[1])[:2] == json.loads(cold[1])[:2] == ["__main__", ["a", "b"]]
    assert json.loads(warm[1])[3] == json.loads(cold[1])[3]


def test_logs_of_every_attempt_are_kept_with_their_last_line(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os, sys
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], end="")
        sys.stdout.flush()
        os.kill(os.getpid(), 9) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else None
    """
    code, out, err = launch("--log-dir", "logs", "--tee", "3", "--max-restarts", "1", script=script).end()

    assert code == 0, err
    files = sorted(path.read_text() for path in (tmp_path / "logs").rglob("stdout.log"))
    assert files == ["attempt 0", "attempt 1"]
    assert "[default0]:attempt 0" in out


def test_json_lines_tell_the_story(launch: StartLaunch) -> None:
    code, _, err = launch("--json", "--max-restarts", "1", script="import sys; sys.exit(4)").end()

    events = [json.loads(line) for line in err.splitlines()]
    assert [event["kind"] for event in events if event["kind"] in ("workers_started", "end")] == [
        "workers_started",
        "workers_started",
        "end",
    ]
    assert events[-1]["data"]["exit_code"] == code == 4


def test_quiet_says_nothing_when_all_is_well(launch: StartLaunch) -> None:
    assert launch("--quiet", script="pass").end() == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nnodes", "2:1", "x.py"], "--nnodes '2:1' must have 1 <= MIN <= MAX"),
        (["--nnodes", "two", "x.py"], "--nnodes 'two' must be a number or MIN:MAX"),
        (["no_such.py"], "there is no script 'no_such.py' here; use -m for a module"),
        ([], "name the script to run"),
        (["--rdzv-conf", "lease", "--no-python", "true"], "--rdzv-conf 'lease' must be key=value"),
        (["--admit", "never", "--no-python", "true"], "'never' is not an admission policy"),
        (["--rdzv-backend", "zookeeper", "--nnodes", "2", "--no-python", "true"], "'zookeeper' is not registered"),
        (["--nproc-per-node", "many", "--no-python", "true"], "many"),
        (["--forward-signals", "USR9", "--no-python", "true"], "'USR9' is not a signal"),
        (["--numa-binding", "moon", "--no-python", "true"], "'moon' is not one of 'node', 'socket'"),
    ],
)
def test_bad_input_gets_one_sentence_that_says_what_to_do(
    launch: StartLaunch, arguments: list[str], sentence: str
) -> None:
    code, _, err = launch(*arguments).end()

    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_torchruns_variables_set_flags(launch: StartLaunch) -> None:
    script = "import os; print(os.environ['WORLD_SIZE'], os.environ['ROLE_NAME'])"

    code, out, _ = launch(script=script, PET_NPROC_PER_NODE="2", PET_ROLE="trainer").end()

    assert (code, out) == (0, "2 trainer\n2 trainer\n")


def test_a_gang_that_is_half_finished_is_reported_with_the_stacks_of_the_rest(launch: StartLaunch) -> None:
    script = """
        import os, signal

        def stuck_here():
            signal.pause()

        if os.environ["RANK"] == "1":
            signal.signal(signal.SIGUSR1, lambda *_: None)
            print("waiting", os.getpid())
            stuck_here()
    """
    running = launch("--nproc-per-node", "2", "--half-finished-after", "100ms", script=script)
    pid = int(running.wait_line("waiting").split()[-1])
    assert running.process.stderr is not None
    report = ""
    for line in running.process.stderr:
        report += line
        if "stuck_here" in line or "py-spy" in line:
            break
    os.kill(pid, signal.SIGUSR1)

    assert "1 of 2 workers finished 0.1 s ago" in report
    assert "stuck_here" in report
    assert running.end()[0] == 0


def test_a_crash_loop_ends_with_its_own_exit_code(launch: StartLaunch) -> None:
    code, out, err = launch(
        "--max-restarts=100", "--crash-loop=3", script="import sys; print('try'); sys.exit(5)"
    ).end()

    assert (code, out.count("try")) == (93, 3)
    assert "a crash loop: 3 failures in a row without progress" in err
    assert "exit     5; the launcher exits with 93" in err


@pytest.mark.parametrize("flags", [("--standalone",), (), ("--rdzv-backend", "static")])
def test_the_id_that_was_given_finds_the_run_again(launch: StartLaunch, tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = "import os; print(os.environ['TORCHELASTIC_RUN_ID'])"
    code, out, err = launch(*flags, "--rdzv-id", "ux3", script=script).end()
    found = subprocess.run(
        [sys.executable, "-m", "holdfast", "events", "ux3"],
        capture_output=True,
        text=True,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        check=False,
    )

    assert (code, out) == (0, "ux3\n"), err
    assert "run 'ux3' closed: finished" in found.stdout, found.stderr


def test_a_round_whose_port_was_taken_is_followed_by_one_with_another_port(launch: StartLaunch) -> None:
    """Any program may listen on a held port that it asks for; the job gets over it."""
    script = """
        import os, socket
        def take(port):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen()
            return sock
        port = int(os.environ["MASTER_PORT"])
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            print("first", port, flush=True)
            squatter = take(port)
        with take(port):
            print("second", port, flush=True)
    """
    code, out, err = launch("--standalone", "--max-restarts", "1", script=script).end()

    assert code == 0, err
    ports = dict(line.split() for line in out.splitlines())
    assert ports["first"] != ports["second"]
    assert "Address already in use" in err


def test_lines_have_the_prefix_that_torchruns_variable_or_the_flag_says(launch: StartLaunch) -> None:
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}>"}
    flags = ("--role", "judge", "--tee", "3")
    by_variable = launch(*flags, script="print('hi')", **template)
    by_flag = launch(*flags, "--log-prefix", "(${local_rank})", script="print('hi')", **template)

    assert by_variable.end()[1] == "<judge 0>hi\n"
    assert by_flag.end()[1] == "(0)hi\n"
