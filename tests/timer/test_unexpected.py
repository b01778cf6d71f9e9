"""An exception that no code expected, planted in the watchdog's threads: it is told, and the watch goes on."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.hangs import Hangs
from holdfast.facts import Fact, facts
from holdfast.timer import api, file_server, watchdog
from holdfast.timer.file_client import FileTimerClient
from holdfast.timer.file_server import FileTimerServer
from holdfast.timer.hang import HangOptions
from holdfast.timer.machine import TimersExpired
from holdfast.timer.watchdog import Watchdog

#: A deadline that a dead thread would run into; no test comes near it.
PATIENCE_S = 240


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fact]]:
    """What is published meanwhile; a thread that stumbles goes on at once."""
    for module in (api, file_server, watchdog):
        monkeypatch.setattr(module, "STUMBLE_S", 0.01)
    heard: list[Fact] = []
    facts._unexpected.clear()  # one that was told before is only counted
    stop = facts.listen(heard.append)
    yield heard
    stop()


def says(told: list[Fact], where: str) -> bool:
    return any(f"internal error in {where}" in fact.sentence and "planted" in fact.sentence for fact in told)


def test_a_hang_is_found_though_the_thread_has_stumbled(told: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    read, planted = watchdog._HangThread._read, [RuntimeError("planted"), ValueError("planted")]

    def stumbles(self: Any, running: Any) -> Any:
        if planted and self._is_on:
            raise planted.pop()
        return read(self, running)

    monkeypatch.setattr(watchdog._HangThread, "_read", stumbles)
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    dog = Watchdog("run", "role", hang=HangOptions(limit_s=0.2, start_s=0.2))
    dog.watch([(0, 0, worker.pid, "")])

    worker.wait(PATIENCE_S)
    assert dog.found(0) is not None
    assert says(told, "the hang watchdog")
    dog.close()


def test_a_timer_expires_though_the_thread_has_stumbled(
    told: list[Fact], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read, planted = FileTimerServer._read_requests, [RuntimeError("planted")]

    def stumbles(self: FileTimerServer, pipe: int) -> Any:
        if planted:
            raise planted.pop()
        return read(self, pipe)

    monkeypatch.setattr(FileTimerServer, "_read_requests", stumbles)
    expired: queue.SimpleQueue[TimersExpired] = queue.SimpleQueue()
    server = FileTimerServer(str(tmp_path / "pipe"), "run", on_expired=expired.put)
    server.start()
    client = FileTimerClient(str(tmp_path / "pipe"))
    client.acquire("step", time.time() - 1)

    assert [timer.scope for timer in expired.get(timeout=PATIENCE_S).timers] == ["step"]
    assert says(told, "the timer watchdog")
    server.stop()
    client.close()


def test_a_half_finished_gang_is_told_though_no_stacks_can_be_taken(
    told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Hangs(None, lambda local: local, lambda: None)

    def planted() -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(hangs, "take_stacks", planted)
    heard: queue.SimpleQueue[Fact] = queue.SimpleQueue()
    stop = facts.listen(lambda fact: heard.put(fact) if fact.kind == "half_finished" else None)
    hangs.tell_half_finished("rank 0 has finished, rank 1 goes on", [1])

    assert heard.get(timeout=PATIENCE_S).sentence.startswith("rank 0 has finished")
    assert says(told, "taking the stacks of workers")
    stop()
