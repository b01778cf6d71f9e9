"""A worker's part in rounds, where the coordinator is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.facts import Fact, facts
from holdfast.rendezvous import RendezvousHandler, RendezvousParameters
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.train import membership
from holdfast.train.membership import Membership, can_meet, worker_settings


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """What is published meanwhile."""
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    yield heard
    stop()


class Polled(RendezvousHandler):
    """A handler with the methods of TorchElastic's alone."""

    get_backend = get_run_id = next_rendezvous = is_closed = set_closed = num_nodes_waiting = shutdown = None


def test_workers_meet_through_whatever_can_push(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_meet(Polled())
    monkeypatch.setattr(membership, "get_rendezvous_handler", lambda _: Polled())

    with pytest.raises(UsageError, match="workers cannot meet through 'mine'"):
        Membership(RendezvousParameters("mine", "", "workers", 1, 1))


def test_the_end_of_a_training_says_what_it_waits_for(
    told: list[Fact], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setattr(membership, "CLOSE_TOLD_AFTER_S", 0.01)
    monkeypatch.setattr(membership, "CLOSE_TIMEOUT_S", 0.01)
    carrier = HoldfastRendezvousHandler(
        RendezvousParameters("holdfast", "localhost:0", "agents", 1, 1, standalone=False)
    )
    settings = worker_settings(1, is_host=False)
    worker = Membership(RendezvousParameters("holdfast", str(carrier.endpoint), "workers", **settings))
    worker.join()
    carrier.leave("gone")
    while "out of reach" not in worker._handler.sentence():
        pass
    worker.close_run()
    worker.leave("done")

    assert [fact.kind for fact in told] == ["close_waits", "close_unheard"]
    assert "the coordinator is out of reach" in told[0].sentence
