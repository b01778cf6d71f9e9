"""Notices: a worker that is to leave hears of it between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import Notice, Notices, StorageTier
from holdfast.errors import UsageError


def test_a_signal_is_a_notice_and_ends_nothing() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Notices([signal.SIGUSR1], environ={}) as notices:
        assert notices.pending() is None
        os.kill(os.getpid(), signal.SIGUSR1)

        assert notices.pending() == Notice("SIGUSR1 was received")

    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(("end", "given"), [("1", True), ("99999999999", False), ("soon", False), ("", False)])
def test_a_time_limit_that_is_near_is_a_notice(end: str, given: bool) -> None:
    with Notices([], environ={"SLURM_JOB_END_TIME": end}) as notices:
        notice = notices.pending()

    assert (notice is not None) == given
    if notice is not None:
        assert notice.deadline == 1
        assert notice.seconds_left(now=0.25) == 0.75
        assert notice.seconds_left(now=5.0) == 0.0


def test_only_the_main_thread_can_listen_for_signals() -> None:
    errors = []

    def listen() -> None:
        try:
            Notices().__enter__()
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()

    assert errors == ["only the main thread can listen for signals: open Notices() there"]


LOOP = """
import sys
import numpy as np
from holdfast.checkpoint import Checkpointer, Notices, StorageTier

weights = np.zeros(1000)
with Checkpointer([StorageTier(sys.argv[1])]) as checkpoints, Notices() as notices:
    for step in range(1_000_000_000):
        weights += 1
        if step == 3:
            print("training", flush=True)
        if notice := notices.pending():
            checkpoints.save(step, {"weights": weights, "step": step})
            break
print(notice.reason, flush=True)
"""


def test_a_preempted_loop_saves_before_it_leaves(tmp_path: Path, child: Callable[..., Any]) -> None:
    pytest.importorskip("numpy")
    worker = child(LOOP, tmp_path)
    worker.heard(expect="training")
    worker.process.send_signal(signal.SIGTERM)
    worker.heard(expect="SIGTERM was received")

    assert worker.end() == 0
    (entry,) = StorageTier(tmp_path).entries()
    assert entry.key.step >= 3
