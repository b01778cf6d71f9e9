"""The agent's side of the heartbeat: makes the file that workers write their beats into, and reads it."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path

from holdfast.timer.hang import Beat
from holdfast.timer.heartbeat import COUNT, FILE_VARIABLE, LAST, LONGEST, SLOT_BYTES, SLOT_NUMBERS, SLOT_VARIABLE, STEP

#: Memory, where there is such a place: a beat must never wait for a disk.
_MEMORY = Path("/dev/shm")


_PREFIX = "holdfast_beats_"


def _sweep(folder: Path) -> None:
    """Remove what agents of this user have left that were killed."""
    for path in folder.glob(f"{_PREFIX}[0-9]*_*"):
        pid = path.name.removeprefix(_PREFIX).partition("_")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                path.unlink()


class BeatBook:
    """One attempt's beats: a slot for each local rank, in a file that goes away with `close`."""

    def __init__(self, size: int) -> None:
        folder = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _sweep(folder)
        fd, self.path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}_", dir=folder)
        try:
            os.ftruncate(fd, size * SLOT_BYTES)
            self._memory = mmap.mmap(fd, size * SLOT_BYTES)
        finally:
            os.close(fd)
        self._numbers = memoryview(self._memory).cast("q")

    def variables(self, local_rank: int) -> dict[str, str]:
        """What a worker that is yet to start needs in its environment to find its slot, which is empty from now on."""
        begin = local_rank * SLOT_NUMBERS
        for number in range(begin, begin + SLOT_NUMBERS):
            self._numbers[number] = 0
        return {FILE_VARIABLE: self.path, SLOT_VARIABLE: str(local_rank)}

    def read(self, local_rank: int) -> Beat:
        """Return what a worker has shown so far."""
        begin = local_rank * SLOT_NUMBERS
        slot = self._numbers[begin : begin + SLOT_NUMBERS]
        last = slot[LAST]
        return Beat(max(slot[COUNT], 0), last / 1e9 if last > 0 else None, max(slot[LONGEST], 0) / 1e9, slot[STEP])

    def close(self) -> None:
        """Remove the file; workers that still hold it go on writing into nothing."""
        self._numbers.release()
        self._memory.close()
        Path(self.path).unlink(missing_ok=True)
