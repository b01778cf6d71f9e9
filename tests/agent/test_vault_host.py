"""The vault that an agent hosts for its workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.vault_host import ANNOUNCE_TIMEOUT_S, VaultHost
from holdfast.coordinator.messages import Place, RoundId
from holdfast.errors import UnavailableError
from holdfast.facts import Fact, facts
from holdfast.store import MemoryStore
from holdfast.wire.secret import Secret


class Rounds:
    """What a vault needs of a source, with a coordinator that is out of reach."""

    node, tls = "me", None
    secret = Secret(b"secret", "a test")
    place = Place(RoundId(1, "x"), 0, 1, 0, 1, 0, 1, "127.0.0.1", 1, address="127.0.0.1")

    def __init__(self) -> None:
        self.waited: list[timedelta] = []

    def get_run_id(self) -> str:
        return "run"

    @contextmanager
    def store(self, *, whole_run: bool = False) -> Iterator[Any]:
        assert whole_run
        waited = self.waited

        class Away(MemoryStore):
            def set(self, key: str, value: str | bytes) -> None:
                waited.append(self.timeout)
                raise UnavailableError("the coordinator is out of reach")

        yield Away()

    def call(self, call: int, topic: str, body: str) -> None: ...

    def reply(self, called: Any, body: str) -> None: ...


@pytest.fixture
def told() -> Iterator[list[str]]:
    sentences: list[str] = []

    def hear(fact: Fact) -> None:
        sentences.append(fact.sentence)

    stop = facts.listen(hear)
    yield sentences
    stop()


def test_workers_do_not_wait_long_for_a_coordinator_that_is_out_of_reach(
    told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    rounds = Rounds()
    host = VaultHost(rounds)
    try:
        assert host.variables() == {}
    finally:
        host.close()

    assert rounds.waited == [timedelta(seconds=ANNOUNCE_TIMEOUT_S)]
    assert told[-1:] == ["states are not kept in memory: the coordinator is out of reach"]
