"""What a type checker knows of a program that uses Holdfast; mypy reads this, and nothing runs it."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

import holdfast


def train(lr: float) -> float:
    """Stand in for a function that is launched."""
    return lr


def launches() -> None:
    """Results have the type that the function returns; options are checked."""
    assert_type(holdfast.launch(train, 0.1, workers=2, max_restarts=3, hang="auto"), dict[int, float])
    assert_type(holdfast.launch("train.py", "--lr", 0.1, workers="gpu"), dict[int, None])
    holdfast.launch(train, workers=1.5)  # type: ignore[call-overload]
    try:
        holdfast.launch(train, 0.1)
    except holdfast.errors.WorkerFailedError as error:
        assert_type(error.failures, tuple[holdfast.failures.Failure, ...])


def jobs() -> None:
    """A job's status and runner are known."""
    assert_type(holdfast.run("utils.echo", ["--msg", "hello"], timeout=timedelta(hours=1)), holdfast.specs.AppStatus)
    with holdfast.get_runner() as runner:
        assert_type(runner.scheduler_backends(), list[str])


def trainings() -> None:
    """States, checkpoints and heartbeats are known, and so are modules that were never imported."""
    with holdfast.Checkpointer([holdfast.checkpoint.StorageTier("checkpoints")]) as checkpoints:
        assert_type(checkpoints.wait(timeout=60), bool)
    with holdfast.Notices(margin=timedelta(minutes=5)) as notices:
        assert_type(notices.pending(), holdfast.checkpoint.Notice | None)
    assert_type(holdfast.heartbeat(step=3), None)


def mistakes() -> None:
    """A name that does not exist is an error."""
    holdfast.lunch  # type: ignore[attr-defined] # noqa: B018
