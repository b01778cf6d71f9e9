"""`start_processes` and functions as workers: return values, failures and logs by local rank."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.compat.elastic.processes import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)
from holdfast.errors import UsageError
from tests.workers.conftest import long_lived, nobody_left_behind  # noqa: F401 - fixtures

METHODS = ["spawn", "fork", "forkserver"]


@pytest.fixture(autouse=True)
def no_helpers_left(nobody_left_behind):  # noqa: F811
    """End the two helper processes that multiprocessing itself keeps for good."""
    yield
    multiprocessing.forkserver._forkserver._stop()
    multiprocessing.resource_tracker._resource_tracker._stop()


@pytest.fixture
def launch(tmp_path):
    contexts = []

    def begin(entrypoint, size=2, *, args=None, redirects=Std.ALL, tee=Std.NONE, env=None, **more):
        args = args or {rank: (rank,) for rank in range(size)}
        envs = {rank: {"RANK": str(rank), **(env or {})} for rank in range(size)}
        specs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects, tee)
        contexts.append(start_processes("test", entrypoint, args, envs, specs, **more))
        return contexts[-1]

    yield begin
    for context in contexts:
        context.close(signal.SIGKILL)


def square(number):
    print("squaring", number, flush=True)
    print("to stderr", file=sys.stderr)
    return number * number


def describe(_):
    return os.environ["RANK"], os.getsid(0) == os.getpid(), os.getpid()


def large(_):
    return b"x" * 5_000_000


def fail_as_one(rank):
    if rank == 1:
        raise ValueError("bad rank")
    while True:
        signal.pause()


def unpicklable(_):
    return lambda: None


def leave(rank):
    sys.exit(rank * 3)


def leave_half_a_line(rank):
    print("half", rank, end="")
    os._exit(0)


def kill_myself(_):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever(_):
    print("ready", flush=True)
    while True:
        signal.pause()


def tensors(rank):
    torch = pytest.importorskip("torch")
    return {"here": torch.full((3,), float(rank))}


def child_of_my_own(_):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.map(abs, [-3])


@pytest.mark.parametrize("method", METHODS)
def test_return_values_come_back_by_rank(launch, method):
    context = launch(square, 3, start_method=method)

    result = context.wait(240)

    assert result is not None
    assert not result.is_failed()
    assert result.return_values == {0: 0, 1: 1, 2: 4}
    assert Path(result.stdouts[2]).read_text() == "squaring 2\n"
    assert Path(result.stderrs[2]).read_text() == "to stderr\n"


@pytest.mark.parametrize("method", METHODS)
def test_function_workers_have_their_own_environment_and_session(launch, method):
    context = launch(describe, start_method=method)
    pids = context.pids()

    result = context.wait(240)

    assert result is not None
    assert result.return_values == {rank: (str(rank), True, pids[rank]) for rank in (0, 1)}


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_ends_the_others_and_is_told_with_its_traceback(launch, method):
    context = launch(fail_as_one, start_method=method)

    result = context.wait(240)

    assert result is not None
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert failure.exitcode == 1
    assert failure.message.rstrip().endswith("ValueError: bad rank")
    assert "functions.py" not in failure.message
    assert "ValueError: bad rank" in Path(result.stderrs[1]).read_text()


def test_a_large_return_value_blocks_no_process(launch):
    result = launch(large, start_method="fork").wait(240)

    assert result is not None
    assert {len(value) for value in result.return_values.values()} == {5_000_000}


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_comes_back_though_its_process_has_ended(launch, method):
    pytest.importorskip("torch")
    result = launch(tensors, start_method=method).wait(240)

    assert result is not None
    assert {rank: value["here"].tolist() for rank, value in result.return_values.items()} == {
        0: [0.0] * 3,
        1: [1.0] * 3,
    }


def test_a_return_value_that_cannot_travel_is_a_failure_that_says_so(launch):
    result = launch(unpicklable, 1, start_method="fork").wait(240)

    assert result is not None
    assert "which cannot be sent back to the agent" in result.failures[0].message


def test_a_function_that_cannot_travel_is_the_callers_fault(launch):
    with pytest.raises(UsageError, match="cannot be sent"):
        launch(lambda _: None, start_method="spawn")
    with pytest.raises(UsageError, match="one of spawn"):
        launch(square, start_method="teleport")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("function", "code"), [(leave, 3), (kill_myself, -9)])
def test_exit_codes_of_functions_are_exact(launch, method, function, code):
    result = launch(function, args={0: (1,)}, size=1, start_method=method).wait(240)

    assert result is not None
    assert result.failures[0].exitcode == code


def test_a_function_that_leaves_at_once_returns_nothing_and_its_last_words_are_shown(launch, capfd):
    context = launch(leave_half_a_line, 2, redirects=Std.NONE)

    assert context.wait(240).return_values == {0: None, 1: None}
    assert capfd.readouterr().out in ("half 0half 1", "half 1half 0")


def test_function_workers_may_have_children(launch):
    result = launch(child_of_my_own, 1, start_method="fork").wait(240)

    assert result is not None
    assert result.return_values == {0: [3]}


def test_a_forked_function_does_not_run_the_agents_signal_handlers(launch):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        context = launch(wait_for_ever, 1, start_method="fork")
        context.close(signal.SIGTERM, 30)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard == []


def test_programs_run_too(launch):
    context = launch("/bin/sh", args={0: ("-c", "echo out; echo err >&2"), 1: ("-c", "exit 0")})

    result = context.wait(240)

    assert isinstance(context, SubprocessContext)
    assert result is not None
    assert result.return_values == {0: None, 1: None}
    assert Path(result.stdouts[0]).read_text() == "out\n"
    assert Path(result.stderrs[0]).read_text() == "err\n"


def test_a_failing_program_is_reported_with_its_code(launch):
    result = launch("/bin/sh", args={0: ("-c", "exit 7"), 1: ("-c", "sleep 1000")}).wait(240)

    assert result is not None
    assert next(iter(result.failures)) == 0  # the one that failed by itself comes first
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 7, 1: -signal.SIGTERM}


def test_a_program_that_there_is_not_is_told_as_python_does(launch):
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        launch("no-such-program", 1)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2"])
def test_signals_raise_until_the_context_is_closed(launch, tmp_path, monkeypatch, name):
    os.mkfifo(tmp_path / "go")
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", f"{name},SIGNONSENSE")
    number = signal.Signals[name]
    before = signal.getsignal(number)
    command = f"read _ < {tmp_path}/go; kill -{int(number)} {os.getpid()}; sleep 1000"
    context = launch("/bin/sh", args={0: ("-c", command)}, size=1)

    def ask_and_wait():
        (tmp_path / "go").write_text("now\n")
        context.wait(240)

    with pytest.raises(SignalException) as raised:
        ask_and_wait()

    assert raised.value.sigval is number
    context.close()
    assert signal.getsignal(number) is before


def test_a_handler_that_the_program_has_set_stays(launch):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        result = launch("/bin/sh", args={0: ("-c", f"kill {os.getpid()}; exit 0")}, size=1).wait(240)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert result is not None
    assert heard == [1]


def test_waiting_looks_waits_and_gives_up(launch):
    context = launch(wait_for_ever, 1, start_method="fork")
    began = time.monotonic()

    assert context.wait(0) is None
    assert context.wait(0.05) is None
    assert time.monotonic() - began >= 0.05


def test_closing_is_final_and_may_be_repeated(launch):
    context = launch(wait_for_ever, 1, start_method="fork")

    context.close(signal.SIGKILL)
    context.close()

    result = context.wait(0)
    assert result is not None
    assert result.failures[0].exitcode == -9


def test_a_result_can_be_asked_for_again(launch):
    context = launch(square, start_method="fork")

    assert context.wait(240) is context.wait(0)


def test_tee_shows_lines_with_the_default_prefix(launch, capfd):
    launch(square, 1, tee=Std.OUT, start_method="fork").wait(240)

    assert capfd.readouterr().out == "[test0]:squaring 0\n"


def test_filters_are_passed_on(launch, tmp_path):
    launch(square, tee=Std.OUT, start_method="fork", duplicate_stdout_filters=["squaring 1"]).wait(240)

    [path] = (tmp_path / "logs").glob("*/attempt_0/filtered_stdout.log")
    assert path.read_text() == "[test1]:squaring 1\n"


def test_ranks_must_be_counted_from_zero(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path))

    with pytest.raises(RuntimeError, match="expected"):
        start_processes("test", square, {1: (1,)}, {1: {}}, specs)
    with pytest.raises(RuntimeError, match="expected"):
        start_processes("test", square, {0: (1,)}, {}, specs)
    with pytest.raises(UsageError, match="nothing to start"):
        start_processes("test", square, {}, {}, specs)


def test_a_context_starts_once(launch):
    context = launch(square, 1, start_method="fork")

    with pytest.raises(UsageError, match="already"):
        context.start()


def test_the_classes_are_those_people_extend():
    assert issubclass(MultiprocessContext, PContext)
    assert SignalException("enough", signal.SIGTERM).sigval is signal.SIGTERM
