"""The heartbeat: a worker reports progress at the cost of a few writes to its own memory.

The agent shares a small file with its workers. Each has a slot of eight whole numbers there, written without a system
call or a lock; the agent reads them now and then. Without an agent that watches, a heartbeat does nothing.
"""
# A worker's own program imports this: it imports as little as possible itself.
# ruff: noqa: PTH123

from __future__ import annotations

import mmap
import os
from time import monotonic_ns

#: Where the slots are, and which of them is this worker's.
FILE_VARIABLE = "HOLDFAST_HEARTBEAT_FILE"
SLOT_VARIABLE = "HOLDFAST_HEARTBEAT_SLOT"

#: A slot fills a cache line, so that no worker slows another down.
SLOT_BYTES = 64
SLOT_NUMBERS = SLOT_BYTES // 8
#: What a slot holds. LAST is the monotonic clock in nanoseconds, 0 before the first beat, negative in a pause; LONGEST
#: is the longest time between two beats after the first few, which include compiling and filling caches. FIRST is when
#: the first beat came. Beats with a step's number are counted in STEPS; FIRST_STEP and FIRST_STEP_AT are of the first.
LAST, COUNT, STEP, LONGEST, FIRST, STEPS, FIRST_STEP, FIRST_STEP_AT = range(8)
WARM_UP_BEATS = 3

_slot: memoryview | None = None
_looked = False


def heartbeat(step: int | None = None) -> None:
    """Report that this worker makes progress; call it once per step, with the step's number if there is one.

    Takes well under a microsecond. With `--hang auto` the agent learns how long steps take, and kills a gang that is
    stuck, with the stacks of all its workers in the report.
    """
    slot = _slot
    if slot is None:
        slot = None if _looked else _find_slot()
        if slot is None:
            return
    now = monotonic_ns()
    last, count = slot[LAST], slot[COUNT] + 1
    if count > WARM_UP_BEATS and last > 0 and now - last > slot[LONGEST]:
        slot[LONGEST] = now - last
    if count == 1:
        slot[FIRST] = now
    if step is not None:
        if not slot[STEPS]:
            slot[FIRST_STEP], slot[FIRST_STEP_AT] = step, now
        slot[STEP] = step
        slot[STEPS] += 1
    slot[COUNT] = count
    slot[LAST] = now


def is_beating() -> bool:
    """Whether this process has sent a beat that counts."""
    return _slot is not None


def beats() -> int:
    """Return how many beats this process has sent."""
    slot = _slot
    return 0 if slot is None else slot[COUNT]


def pause() -> None:
    """Announce that no beats will come for a while, as during a long evaluation; the next beat ends the pause."""
    if _slot is not None:
        _slot[LAST] = -abs(_slot[LAST])


def resume() -> None:
    """End a pause without counting it as a step."""
    if _slot is not None and _slot[LAST] <= 0:
        _slot[LAST] = monotonic_ns()


def _find_slot() -> memoryview | None:
    """Open this worker's slot, once; if that fails there is no heartbeat, and training goes on."""
    global _slot, _looked
    _looked = True
    path, number = os.environ.get(FILE_VARIABLE), os.environ.get(SLOT_VARIABLE, "")
    if path and number.isdecimal():
        try:
            with open(path, "r+b") as file:
                numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        except (OSError, ValueError):
            return None
        begin = int(number) * SLOT_NUMBERS
        if begin + SLOT_NUMBERS <= len(numbers):
            _slot = numbers[begin : begin + SLOT_NUMBERS]
    return _slot


def _after_fork() -> None:
    """Look again in a forked child: it may be a worker with its own slot, which its parent was not."""
    global _slot, _looked
    _slot, _looked = None, False


os.register_at_fork(after_in_child=_after_fork)
