"""Processes: results, failures, signals, logs, and the kinds of error that callers catch."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import PContext, _validate_full_rank, _wrap
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout

HERE = Path.cwd()


def raises(kind: type[BaseException], call: Any, *args: Any, **kwargs: Any) -> str:
    """Whether a call raises what programs catch; ours may be of a further kind too."""
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except kind:
        return kind.__name__


def start(entrypoint: Any, args: dict[int, tuple[Any, ...]], envs: Any = None, **more: Any) -> PContext:
    specs = DefaultLogsSpecs(str(HERE / "logs"), redirects=Std.ALL)
    envs = {rank: {"RANK": str(rank)} for rank in args} if envs is None else envs
    return start_processes("test", entrypoint, args, envs, specs, **more)


def double(rank: int) -> Any:
    print("doubling", rank)
    return {"tensor": torch.full((2,), 2.0 * rank), "rank": os.environ["RANK"]}


def fail(rank: int) -> None:
    if rank == 1:
        raise ValueError("bad")
    signal.pause()


def show_results() -> None:
    result = start(double, {0: (0,), 1: (1,)}).wait(240)
    print({rank: (value["tensor"].tolist(), value["rank"]) for rank, value in sorted(result.return_values.items())})
    print(Path(result.stdouts[1]).read_text(), result.is_failed(), result.failures)
    result = start(fail, {0: (0,), 1: (1,)}).wait(240)
    print(sorted(result.failures), result.failures[1].exitcode, "ValueError: bad" in str(result.failures[1].message))
    result = start("sh", {0: ("-c", "exit 7"), 1: ("-c", "exec sleep 1000")}).wait(240)
    print({rank: failure.exitcode for rank, failure in sorted(result.failures.items())}, result.return_values)
    result = start("true", {0: (), 1: ()}).wait(240)
    print(result.return_values, result.is_failed())


def show_errors() -> None:
    print(
        raises(RuntimeError, start, "true", {0: (), 1: ()}, {0: {}}),
        raises(RuntimeError, _validate_full_rank, {0: 1}, 2, "x"),
    )
    print(_validate_full_rank({0: 1, 1: 2}, 2, "x"), raises(FileNotFoundError, start, "no-such-program", {0: ()}))
    (HERE / "file").touch()
    print(raises(NotADirectoryError, DefaultLogsSpecs, str(HERE / "file")))
    for text in ("0:1,", "9", "a", "0:1,1:2"):
        print(text, raises(ValueError, Std.from_str, text))
    specs = DefaultLogsSpecs(str(HERE / "reified"))
    envs = {0: {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0"}}
    print(Path(specs.reify(envs).error_files[0]).parents[2] == Path(specs.reify(envs).error_files[0]).parents[2])
    print(len(list((HERE / "reified").iterdir())))


def show_signals() -> None:
    os.mkfifo("go")
    context = start("sh", {0: ("-c", f"read _ < {HERE}/go; kill -TERM {os.getpid()}; exec sleep 1000")})
    try:
        Path("go").write_text("now\n")
        context.wait(240)
    except SignalException as raised:
        print("SignalException", raised.sigval.name)
        context.close(raised.sigval)


def show_redirects() -> None:
    with redirect_stdout("out"), redirect_stderr("err"):
        print("from python")
        os.system("echo from a child")
        print("an error", file=sys.stderr, flush=True)
        sys.stdout.flush()
    print(sorted(Path("out").read_text().splitlines()), Path("err").read_text())


def add(a: int, b: int) -> int:
    return a + b


def show_wrap() -> None:
    """`_wrap` is the main function of one worker, for launchers that start processes themselves."""
    context = multiprocessing.get_context("spawn")
    queue, read = context.SimpleQueue(), context.Event()
    work = (0, add, {0: (1, 2)}, {0: {"X": "y"}}, {0: ""}, {0: ""}, {0: queue}, read, None)
    process = context.Process(target=_wrap, args=work)
    process.start()
    print(queue.get())
    read.set()
    process.join()
    print(process.exitcode)


def show_failures() -> None:
    failure = ProcessFailure(0, 1, 1, "/nowhere")
    print(failure.error_file, failure.timestamp > 0)
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(HERE / "error.json")

    @record
    def agent() -> None:
        inner = HERE / "inner.json"
        inner.write_text(json.dumps({"message": {"message": "inner", "extraInfo": {"timestamp": "5"}}}))
        raise ChildFailedError("x", {0: ProcessFailure(0, 1, 1, str(inner))})

    print(raises(ChildFailedError, agent), json.loads((HERE / "error.json").read_text()))


if __name__ == "__main__":
    show_results()
    show_errors()
    show_signals()
    show_redirects()
    show_wrap()
    show_failures()
