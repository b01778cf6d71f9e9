"""An exception that no code expected, planted everywhere on the I/O thread: it is told, and never waited for."""

from __future__ import annotations

import asyncio
import queue
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.coordinator.machine import CoordinatorMachine, Received
from holdfast.coordinator.messages import Beat, Join, NodeSpec, RunSettings
from holdfast.errors import InternalError, RendezvousClosedError, RendezvousConnectionError
from holdfast.facts import Fact, facts
from holdfast.rendezvous import native
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.driver import Host, Member
from holdfast.rendezvous.machine import Ask, MemberEffect, MemberMachine, RoundSealed, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.wire.address import Endpoint
from holdfast.wire.loop import IoThread
from holdfast.wire.ports import HeldPort

#: A deadline that a hang would run into; no test comes near it.
PATIENCE_S = 240

Make = Callable[[], HoldfastRendezvousHandler]


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """The internal errors that are published meanwhile."""
    heard: list[Fact] = []
    facts._unexpected.clear()  # one that was told before is only counted
    stop = facts.listen(lambda fact: heard.append(fact) if fact.kind == "internal_error" else None)
    yield heard
    stop()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes handlers of one node that carry their own coordinator; they leave with the test."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    made: list[HoldfastRendezvousHandler] = []

    def start() -> HoldfastRendezvousHandler:
        params = RendezvousParameters("holdfast", "localhost:0", "run", 1, 1, join_timeout=PATIENCE_S)
        made.append(HoldfastRendezvousHandler(params))
        return made[-1]

    yield start
    for handler in made:
        handler.leave("the test is over")


def says(told: list[Fact], where: str, planted: str = "planted") -> bool:
    """Whether an internal error was told with its place and its traceback."""
    return any(where in fact.sentence and planted in fact.sentence and "Traceback" in fact.sentence for fact in told)


def test_in_the_members_machine(make: Make, told: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make()

    def planted(*_: Any) -> list[MemberEffect]:
        raise RuntimeError("planted")

    monkeypatch.setattr(handler._member.machine, "handle", planted)

    with pytest.raises(RendezvousClosedError, match=re.escape("internal error in the rendezvous: RuntimeError(")):
        handler.next_round()
    assert says(told, "internal error in the rendezvous")


def test_in_what_a_node_says_of_itself(make: Make, told: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make()

    def planted(**_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(handler._member.machine, "describe", planted)

    with pytest.raises(RendezvousClosedError, match="internal error"):
        handler.next_round()
    assert says(told, "internal error in the rendezvous")


def test_in_a_listener(make: Make, told: list[Fact]) -> None:
    handler = make()
    heard: list[MemberEffect] = []

    def planted(effect: MemberEffect) -> None:
        if isinstance(effect, RoundSealed):
            raise RuntimeError("planted")

    handler.listen(planted)
    handler.listen(heard.append)
    handler.next_round()

    with pytest.raises(RendezvousClosedError, match="internal error"):
        handler.next_round()
    assert says(told, "internal error in the rendezvous")
    assert handler.ended is not None
    assert handler.ended in heard


def test_in_the_attempt_to_connect(make: Make, told: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make()

    async def planted(_: Host) -> bool:
        raise KeyError("planted")

    monkeypatch.setattr(Host, "try_open", planted)

    with pytest.raises(RendezvousConnectionError, match="internal error: KeyError"):
        handler.next_round()
    assert says(told, "connecting to the coordinator")


@pytest.mark.parametrize("message", [Join, Beat])
def test_in_the_coordinator_its_nodes_find_the_next_one(
    make: Make, told: list[Fact], monkeypatch: pytest.MonkeyPatch, message: type
) -> None:
    handle, planted = CoordinatorMachine.handle, [RuntimeError("planted")]

    def raises_once(self: CoordinatorMachine, event: Any, now: float) -> Any:
        if planted and isinstance(event, Received) and isinstance(event.message, message):
            raise planted.pop()
        return handle(self, event, now)

    monkeypatch.setattr(CoordinatorMachine, "handle", raises_once)
    handler = make()
    endpoint = handler.endpoint
    handler._member.machine.describe(lease_s=0.5)  # so that a beat comes soon
    place = handler.next_round()
    while planted:
        assert handler.ended is None
    again = handler.next_round()

    assert says(told, "internal error in the coordinator")
    assert handler.endpoint == endpoint
    assert handler.is_host
    assert again.round.number > place.round.number


def test_in_the_thread_itself(make: Make, told: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    io = IoThread()
    monkeypatch.setattr(native, "io_thread", lambda: io)
    handler = make()
    handler.next_round()
    ended: list[MemberEffect] = []
    handler.listen(ended.append)

    io.call(sys.exit)
    io._thread.join()

    assert handler.ended is not None
    assert [effect for effect in ended if isinstance(effect, RunEnded)] == [handler.ended]
    with pytest.raises(RendezvousClosedError, match="the I/O thread has ended"):
        handler.next_round()
    with pytest.raises(InternalError):
        handler._wait_outcome(queue.SimpleQueue())
    assert handler.leave("over") is False
    assert says(told, "the I/O thread", "SystemExit")


PLANTED = """
import sys
import holdfast.rendezvous.machine as machine

handle = machine.MemberMachine.handle

def planted(self, event, now):
    if type(event).__name__ == "Fail":
        raise RuntimeError("planted")
    return handle(self, event, now)

machine.MemberMachine.handle = planted
from holdfast.cli import main
main(["launch", "--max-restarts", "3", "fails.py"])
"""


def test_an_agent_with_restarts_left_ends_loudly(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(7)\n")

    done = subprocess.run(
        [sys.executable, "-c", PLANTED],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environ,
        timeout=PATIENCE_S,
    )

    assert done.returncode == 1, done.stderr
    assert "internal error in the rendezvous: RuntimeError('planted')" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert "failed after" in done.stderr


SERVE = """
from holdfast.coordinator.machine import Connected, CoordinatorMachine

handle = CoordinatorMachine.handle

def planted(self, event, now):
    if type(event) is Connected:
        raise RuntimeError("planted")
    return handle(self, event, now)

CoordinatorMachine.handle = planted
from holdfast.cli import main
main(["serve", "localhost:0"])
"""


def test_a_coordinator_of_its_own_ends_loudly_so_that_it_is_started_again(environ: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    endpoint = process.stdout.readline().split()[-1]
    subprocess.run(
        [sys.executable, "-m", "holdfast", "rounds", endpoint], env=environ, capture_output=True, check=False
    )
    _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert "internal error in the coordinator: RuntimeError('planted')" in err
    assert "the coordinator has stopped; start it again" in err


def test_a_retry_that_a_failed_attempt_starts_at_once_can_still_be_given_up() -> None:
    port = HeldPort()  # bound, but not listening

    async def connect() -> None:
        spec = NodeSpec("a", "host-a", "trainer", 1, 0)
        machine = MemberMachine("job", spec, RunSettings(1, 1), lambda: 0.5)
        member = Member(machine, Endpoint("127.0.0.1", port.port), b"", lambda _: None)
        member.handle(Ask(1, time.monotonic() + PATIENCE_S))
        first = member._opening
        assert first is not None
        await first
        second = member._opening
        assert second is not None
        assert second is not first
        member.close()
        assert second.cancelling()

    asyncio.run(connect())
    port.close()
