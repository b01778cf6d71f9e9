"""`holdfast.launch`: run a function or a script on every worker of this node, and return the results."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar, overload

from holdfast.errors import SignalError, UsageError, WorkerFailedError
from holdfast.launcher.api import LaunchReport, run_agent
from holdfast.launcher.config import entrypoint, make_config, parse_nnodes
from holdfast.launcher.options import OPTIONS, LaunchOptions

T = TypeVar("T")

#: Flags that have a name of their own here, and flags of the command line's screen and process.
NOT_TAKEN = {
    "nproc_per_node": "it is called workers here",
    "rdzv_endpoint": "it is called endpoint here",
    "rdzv_id": "it is called run_id here",
    "quiet": "launch prints nothing of its own",
    "json": "launch prints nothing of its own; see event_log_handler",
    "compat": "call holdfast.compat.install() first",
}


@overload
def launch(
    target: Callable[..., T],
    *args: Any,
    workers: int | str = ...,
    nnodes: int | str = ...,
    max_restarts: int = ...,
    endpoint: str = ...,
    run_id: str = ...,
    **options: Any,
) -> dict[int, T]: ...


@overload
def launch(
    target: str | os.PathLike[str],
    *args: Any,
    workers: int | str = ...,
    nnodes: int | str = ...,
    max_restarts: int = ...,
    endpoint: str = ...,
    run_id: str = ...,
    **options: Any,
) -> dict[int, None]: ...


def launch(
    target: Callable[..., Any] | str | os.PathLike[str],
    *args: Any,
    workers: int | str = LaunchOptions.nproc_per_node,
    nnodes: int | str = LaunchOptions.nnodes,
    max_restarts: int = LaunchOptions.max_restarts,
    endpoint: str = LaunchOptions.rdzv_endpoint,
    run_id: str = "",
    **options: Any,
) -> dict[int, Any]:
    """Run a function or a script on every worker of this node and return the workers' results by rank.

        results = holdfast.launch(train, 0.1, workers=2, max_restarts=3)     # train(0.1) on two workers
        holdfast.launch("train.py", "--lr", 0.1, workers="gpu")              # a worker for each GPU

    `target` is a function, which gets `args` and whose results come back, or the path of a script, which gets `args` as
    its command line and whose result is None. A function and what it returns must be picklable; functions that exist
    only in a session work too. Each worker has torchrun's environment variables (RANK, WORLD_SIZE, MASTER_ADDR...).

    With several nodes, call it once on each node with the same `nnodes`, `endpoint` ("host-a:29400") and `run_id`.
    Every other flag of `holdfast launch` is taken by its name, with underscores: `hang="auto"`, `log_dir="logs"`.

    Raises `UsageError` for invalid arguments, `WorkerFailedError`, with the remote traceback, when a worker
    failed and no restart is left, `KeyboardInterrupt` after Ctrl-C and `SignalError` after any other signal.
    """
    if isinstance(workers, int) and workers < 1:
        raise UsageError(f"workers is {workers} but must be at least 1")
    flags = LaunchOptions(
        nproc_per_node=str(workers),
        nnodes=str(nnodes),
        max_restarts=max_restarts,
        rdzv_endpoint=endpoint,
        rdzv_id=run_id or LaunchOptions.rdzv_id,
        **_flags(options),
    )
    if parse_nnodes(flags.nnodes)[1] > 1 and not (endpoint or flags.master_addr):
        raise UsageError(f"nnodes is {nnodes}, so say where the nodes meet, as in endpoint='host-a:29400'")
    if callable(target):
        return _results(run_agent(make_config(flags, target), target, list(args)))
    words = {"script": os.fspath(target), "script_args": tuple(map(str, args))}
    entry = entrypoint(LaunchOptions(**{**vars(flags), **words}))
    return _results(run_agent(make_config(flags, entry), entry, []))


def _flags(options: dict[str, Any]) -> dict[str, Any]:
    """Check the names, and write the values as they are typed on a command line."""
    for name in options:
        if name in NOT_TAKEN:
            raise UsageError(f"launch takes no option '{name}': {NOT_TAKEN[name]}")
        if name not in OPTIONS:
            close = get_close_matches(name, set(OPTIONS) - set(NOT_TAKEN), n=1)
            hint = f"did you mean {close[0]}?" if close else "see docs/OPTIONS.md"
            raise UsageError(f"launch takes no option '{name}'; {hint}")
    return {name: _typed(name, value) for name, value in options.items() if value is not None}


def _typed(name: str, value: Any) -> Any:
    kind = OPTIONS[name].type
    if kind is tuple:
        return (value,) if isinstance(value, str) else tuple(value)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value) if kind is str else value


def _results(report: LaunchReport) -> dict[int, Any]:
    outcome = report.outcome
    if outcome.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.signal:
        raise SignalError(outcome.reason, signal.Signals(outcome.signal))
    if report.result.is_failed():
        verdict = report.verdict
        if verdict is None:
            raise WorkerFailedError(outcome.reason, exit_code=report.exit_code)
        told = verdict.cause.traceback.rstrip()
        message = f"{verdict.sentence}\n\n{told}" if told else verdict.sentence
        raise WorkerFailedError(message, (verdict.cause, *verdict.others), report.exit_code)
    return report.result.return_values
