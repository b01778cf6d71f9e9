"""The background thread that owns the sockets."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.coordinator.messages import CODEC, Query
from holdfast.errors import InternalError
from holdfast.facts import ERROR, Fact, facts
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import Message
from holdfast.wire.link import Link
from holdfast.wire.listener import Listener, Peer
from holdfast.wire.loop import IoThread

#: A library that ends slowly, as large ones do: for so long there is no Python any more, and the thread is still there.
ENDS_SLOWLY = """
import ctypes, sys
from holdfast.wire.loop import io_thread

async def later():
    io.loop.call_later(0.5, print)

io = io_thread()
io.wait(later())
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # which sleeps for as many seconds as the exit code says
"""


def test_a_process_ends_with_its_own_exit_code_whatever_its_loop_is_about_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_SLOWLY + "sys.exit(1)"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, "")


def test_what_is_registered_for_the_end_may_use_the_loop() -> None:
    """Even what was registered before the loop was known, and so is called after it has come to rest."""
    program = """
import atexit

async def answer():
    return "still here"

atexit.register(lambda: print(io.wait(answer())))
"""
    done = subprocess.run([sys.executable, "-c", program + ENDS_SLOWLY], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """What is published meanwhile."""
    heard: list[Fact] = []
    facts._unexpected.clear()  # one that was told before is only counted
    stop = facts.listen(heard.append)
    yield heard
    stop()


def raise_planted() -> None:
    raise RuntimeError("planted")


async def answer() -> str:
    return "here"


def test_what_a_callback_a_timer_or_a_forgotten_task_raises_is_told_and_the_loop_goes_on(told: list[Fact]) -> None:
    io = IoThread()

    async def plant() -> None:
        async def fail() -> None:
            raise_planted()

        timer_ran = asyncio.Event()
        io.loop.call_later(0, raise_planted)
        io.loop.call_later(0.001, timer_ran.set)
        task = io.loop.create_task(fail())
        await timer_ran.wait()
        del task

    io.call(raise_planted)
    io.wait(plant())
    gc.collect()

    assert io.wait(answer()) == "here"
    internal = [fact for fact in told if fact.kind == "internal_error"]
    assert len(internal) >= 2
    for fact in internal:
        assert fact.level == ERROR
        assert "RuntimeError('planted')" in fact.sentence
        assert "in raise_planted" in fact.sentence
    assert any("never retrieved" in fact.sentence for fact in internal)


@pytest.mark.parametrize("end", [lambda: sys.exit(3), None], ids=["by SystemExit", "by stop"])
def test_when_the_thread_ends_every_wait_fails_at_once_and_its_users_are_told(
    told: list[Fact], end: Callable[[], None] | None
) -> None:
    io = IoThread()
    users: list[str] = []
    io.on_end(users.append)
    forgotten = io.on_end(lambda _: users.append("forgotten"))
    forgotten()

    async def wait_for_ever() -> None:
        io.loop.call_soon(end or io.loop.stop)
        await io.loop.create_future()

    with pytest.raises(InternalError, match="the I/O thread"):
        io.wait(wait_for_ever())
    with pytest.raises(InternalError, match="the I/O thread"):
        io.wait(answer())
    with pytest.raises(InternalError, match="the I/O thread"):
        io.check()
    io.call(raise_planted)  # nothing happens
    io.on_end(users.append)
    io._thread.join()

    assert len(users) == 2
    assert not io.is_alive
    assert any("all that waits for it fails" in fact.sentence for fact in told)


def test_a_thread_that_ended_is_replaced_for_new_users() -> None:
    program = """
import sys
from holdfast.wire.loop import io_thread

async def answer():
    return "another"

first = io_thread()
first.call(sys.exit)
first._thread.join()
print(io_thread().wait(answer()), io_thread() is not first)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "another True\n"), done.stderr


def test_what_a_service_raises_costs_the_connection_and_is_told(told: list[Fact]) -> None:
    class Service:
        def opened(self, peer: Peer[Any]) -> None:
            pass

        def received(self, peer: Peer[Any], message: Any) -> None:
            raise_planted()

        def closed(self, peer: Peer[Any], reason: str) -> None:
            ended.append(reason)

    ended: list[str] = []
    io = IoThread()

    async def ask() -> None:
        listener: Listener[Message] = Listener(Service(), CODEC, b"")
        endpoint = await listener.open(Endpoint("127.0.0.1", 0))
        lost = io.loop.create_future()
        link = await Link.connect(endpoint, CODEC, b"", lambda _: None, lost.set_result)
        link.send(Query())
        await lost
        await listener.close()

    io.wait(ask())

    assert ended == ["the connection broke (planted)"]
    assert any(fact.kind == "internal_error" and "in raise_planted" in fact.sentence for fact in told)
