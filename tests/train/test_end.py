"""The end of a training: a worker that is done first waits for those that are a moment behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast.rendezvous import RendezvousParameters
from holdfast.train.membership import Membership, worker_settings
from holdfast.train.run import elastic
from holdfast.wire.ports import HeldPort

np = pytest.importorskip("numpy")

STEPS = 4


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    held = HeldPort()
    yield f"127.0.0.1:{held.port}"
    held.close()


@pytest.mark.parametrize("leaves", ["break", "all epochs"])
def test_a_worker_that_is_a_moment_behind_still_does_the_last_step(endpoint: str, leaves: str) -> None:
    """The root of a broadcast is done before the others have come to it, and would end the training under them."""

    def work(_: int) -> tuple[int, list[float]]:
        state = holdfast.NumpyState(x=np.zeros(1))
        settings = worker_settings(2)
        membership = Membership(RendezvousParameters("holdfast", endpoint, "end", **settings))
        with elastic(state, membership=membership) as run:
            for step in run.steps(2 * STEPS if leaves == "all epochs" else 100, 2):
                with step:
                    step.add(np.ones(1))
                    state.x = state.x + step.total()
                    if run.rank == 1 and step.number == STEPS - 1:
                        membership.wait_broken(0.5)
                    run.ring.broadcast(b"" if run.rank == 0 else None, 0)
                if run.progress == STEPS:
                    break
        return run.progress, state.x.tolist()

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(work, range(2)))

    assert ends == [(STEPS, [2.0 * STEPS])] * 2


def test_short_steps_are_not_all_voted_on(endpoint: str) -> None:
    state = holdfast.NumpyState(x=np.zeros(1))
    membership = Membership(RendezvousParameters("holdfast", endpoint, "votes", **worker_settings(1)))
    heard = []
    with elastic(state, membership=membership) as run:
        for step in run.steps(100, 1):
            before = run._trainer.machine._voted
            with step:
                step.add(np.ones(1))
                step.total()
            heard.append(run._trainer.machine._voted != before)

    assert heard[0], "the first step of a round is"
    assert heard[-1], "the last one is"
    assert sum(heard) < len(heard)
