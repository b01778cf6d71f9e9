"""Gangs in an asyncio loop: the same waits as the gang's own, without blocking the loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from holdfast.workers.driver import GRACE_S

if TYPE_CHECKING:
    from holdfast.workers.driver import Gang
    from holdfast.workers.machine import StopEnded
    from holdfast.workers.plan import WorkerExited


async def wait_exits(gang: Gang) -> list[WorkerExited]:
    """Wait until a worker ends, or a stop is over; return the new ends, at once if there are some."""
    while True:
        taken = gang.take_exits()
        if taken or gang.stopped is not None or not gang.running():
            return taken
        await _wait_readable(gang.fileno(), gang.deadline())


async def stop(gang: Gang, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> StopEnded:
    """Stop the gang and wait until nothing of it is left; its last ends are there to be taken afterwards."""
    gang.ask_stop(number, grace_s)
    while gang.stopped is None:
        await _wait_readable(gang.fileno(), gang.deadline())
        gang.drive()
    return gang.stopped


async def _wait_readable(fd: int, deadline: float | None) -> None:
    """Wait until the descriptor is readable or the monotonic deadline has passed."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def ring() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, ring)
    try:
        with contextlib.suppress(TimeoutError):
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            await asyncio.wait_for(readable, timeout)
    finally:
        loop.remove_reader(fd)
