"""Memory that outlives the worker: the first tier, which a worker restarted on the same node maps back at once.

States lie in slots (`holdfast.checkpoint.slots`) in a folder of /dev/shm that belongs to the run. A writer keeps two
generations, so that the older one is whole while the newer is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.checkpoint.checksums import Checksums
from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.slots import SUFFIX, Slot, SlotReader, is_mapped, read_record, scan
from holdfast.errors import ShardMissingError, UsageError
from holdfast.filenames import file_name
from holdfast.private import PrivateFolder, find_private, make_private, own_folder, user_folder_name

FOLDER_VARIABLE = "HOLDFAST_MEMORY_DIR"
VAULT_VARIABLE = "HOLDFAST_VAULT"
GENERATIONS = 2
#: A folder that was not used for this long is removed when a run begins.
STALE_S = 24 * 3600.0
#: How often to try again if a sweep removes a new folder.
SWEPT_MAX, SWEPT_PAUSE_S = 10, 0.01
_SHARED_MEMORY = Path("/dev/shm")


class Shelf:
    """The slots of one writer, including those of a dead writer of the same shard; reused in turn."""

    def __init__(self, folder: Path, *, slots_max: int = GENERATIONS, populate: bool = True) -> None:
        self.folder = folder
        self.slots_max = slots_max
        self._populate = populate
        self.slots: list[Slot] = []

    @property
    def nbytes(self) -> int:
        """The size of all its slots in bytes."""
        return sum(slot.capacity for slot in self.slots)

    @property
    def newest_first(self) -> list[Slot]:
        """Slots that hold a state, the newest first."""
        return sorted(
            (slot for slot in self.slots if slot.record is not None),
            key=lambda slot: slot.record.key.step if slot.record else -1,
            reverse=True,
        )

    def take_over(self, shard: int) -> None:
        """Take over the slots of dead writers of a shard, and slots that were never finished."""
        owned = {slot.path for slot in self.slots}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            record = read_record(path)
            if path in owned or (record is not None and record.key.shard != shard):
                continue
            slot = Slot.take_over(path)
            if slot is None:
                continue
            if slot.record is not None and slot.record.key.shard != shard:  # another process has just taken it
                slot.close(remove=False)
            elif slot.record is None and len(self.slots) >= self.slots_max:
                slot.close(remove=True)
            else:
                self.slots.append(slot)

    def take(self, nbytes: int) -> Slot | None:
        """Return a wiped slot with room for a state, or None while all writable slots are held.

        The newest state is never overwritten. Raises `OSError` if there is no memory left.
        """
        newest = self.newest_first[: GENERATIONS - 1]
        free = [slot for slot in self.slots if not slot.held and slot not in newest]
        free.sort(key=lambda slot: (slot.record.key.step if slot.record else -1, slot.path))
        while len(self.slots) > self.slots_max and len(free) > 1:  # a dead writer may have left more than we keep
            self._remove(free.pop(0))
        fitting = next((slot for slot in free if slot.capacity >= nbytes and not is_mapped(slot.path)), None)
        if fitting is None:
            if len(self.slots) >= self.slots_max:
                if not free:
                    return None
                self._remove(free[0])
            fitting = Slot.create(self.folder, nbytes, populate=self._populate)
            self.slots.append(fitting)
        fitting.wipe()
        return fitting

    def commit(self, slot: Slot, key: Key, nbytes: int) -> None:
        """Make the state in a slot visible, in place of one that was saved under the same key before."""
        slot.commit(key, nbytes)
        for other in self.slots:
            if other is not slot and not other.held and other.record is not None and other.record.key == key:
                other.wipe()

    def reserve(self, nbytes: int) -> list[Slot]:
        """Make the slots that may still be made, with room for states of this size; returns all. Raises `OSError`."""
        while len(self.slots) < self.slots_max:
            slot = Slot.create(self.folder, nbytes, populate=self._populate)
            self.slots.append(slot)
            slot.state(nbytes)
        return self.slots

    def forget_after(self, step: int) -> None:
        """Wipe states newer than a step: training continues from there, and later states are void."""
        for slot in self.slots:
            if slot.record is not None and slot.record.key.step > step and not slot.held:
                slot.wipe()

    def drop(self, key: Key) -> None:
        """Delete one state."""
        for slot in list(self.slots):
            if slot.record is not None and slot.record.key == key and not slot.held:
                self._remove(slot)

    def close(self, *, remove: bool = False) -> None:
        """Release all slots."""
        for slot in self.slots:
            slot.close(remove=remove)
        self.slots = []

    def _remove(self, slot: Slot) -> None:
        self.slots.remove(slot)
        slot.close(remove=True)


class MemoryTier:
    """Keeps the last two states of a shard in memory of this host that outlives the worker.

    Saving is the copy itself: once `Checkpointer.save` has returned, the state is kept. The copy that is being sent
    to slower tiers is held as well, so a state takes up to three times its size.
    """

    name = "memory"

    def __init__(self, folder: str | Path | None = None, *, place: str = "", every: int = 1) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.every = every
        #: The name by which other hosts find this one.
        self.place = place or os.environ.get(VAULT_VARIABLE) or socket.gethostname()
        self._shelf: Shelf | None = None
        self._shard: int | None = None
        self._held_max = 1
        #: The folder, once it was checked; locked, so that no sweep removes it.
        self._opened: PrivateFolder | None = None

    def allow(self, held_max: int) -> None:
        """Set how many states may be in flight to slower tiers at once; before the first save."""
        self._held_max = held_max

    def shelf(self, shard: int) -> Shelf:
        """Return the slots of this process, with those of a dead worker of the same shard."""
        if self._shelf is None:
            self._open_folder(make=True)
            self._shelf = Shelf(self.folder, slots_max=GENERATIONS + self._held_max)
        if shard != self._shard:
            self._shelf.take_over(shard)
            self._shard = shard
        return self._shelf

    def take(self, shard: int, nbytes: int) -> Slot | None:
        """Return a slot to copy a state into, or None while all are held."""
        return self.shelf(shard).take(nbytes)

    def commit(self, slot: Slot, key: Key, nbytes: int) -> None:
        """Make a state that was copied to a slot visible, and release older generations."""
        self.shelf(key.shard).commit(slot, key, nbytes)
        self._tidy()

    def settle(self, shard: int, step: int) -> None:
        """Training continues from this step: later states of this shard are void."""
        self.shelf(shard).forget_after(step)

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        """Save a shard by copying it."""
        del sums
        slot = self.take(key.shard, len(state))
        assert slot is not None, "nothing is held without a checkpointer"
        slot.state(len(state))[:] = state
        self.commit(slot, key, len(state))

    def entries(self) -> list[Entry]:
        """List every state in the folder, including copies that are kept for other hosts."""
        if not self._open_folder(make=False):
            return []
        return [Entry(record.key, record.nbytes, self.name, self.place) for record in scan(self.folder).values()]

    def open(self, entry: Entry) -> SlotReader:
        """Map a state."""
        return open_slot(self.folder, entry.key)

    def drop(self, key: Key) -> None:
        """Delete a state of this process."""
        if self._shelf is not None:
            self._shelf.drop(key)

    def close(self) -> None:
        """Release the slots; their states stay for the next worker."""
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = self._shard = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open_folder(self, *, make: bool) -> bool:
        """Open the folder and check that it is this user's alone; return whether it exists."""
        if self._opened is None or (make and not self.folder.is_dir()):
            self._opened = make_folder(self.folder) if make else find_folder(self.folder)
        return self._opened is not None

    def clear(self) -> None:
        """Remove every state of the run from this host's memory: training is done. Agents with a vault do it."""
        self.close()
        remove_folder(self.folder)

    def _tidy(self) -> None:
        """Remove states of dead writers of other shards that are older than both of our generations."""
        assert self._shelf is not None
        ours = self._shelf.newest_first
        if len(ours) < GENERATIONS:
            return
        oldest = ours[GENERATIONS - 1].record
        owned = {slot.path for slot in self._shelf.slots}
        for path, record in scan(self.folder).items():
            if path not in owned and oldest is not None and record.key.step < oldest.key.step:
                slot = Slot.take_over(path)
                if slot is not None:
                    slot.close(remove=True)


def open_slot(folder: Path, key: Key) -> SlotReader:
    """Map a state of a folder; raises `ShardMissingError`."""
    for path, record in scan(folder).items():
        if record.key == key:
            return SlotReader(path, key)
    raise ShardMissingError(f"no memory here holds {key.stem} of step {key.step} any more")


# -- folders ---------------------------------------------------------------------------------------------------------


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this run's states: as its agent says, else by the id of the run."""
    if environ.get(FOLDER_VARIABLE):
        return Path(environ[FOLDER_VARIABLE])
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id == "none":
        raise UsageError(
            "a run without an id cannot find its states in memory again, and might find another's: "
            "give --rdzv-id, or give the memory tier a folder, as in MemoryTier('/dev/shm/my-run')"
        )
    return run_folder(run_id)


def run_folder(run_id: str) -> Path:
    """Return the folder of a run's states in memory."""
    if not _SHARED_MEMORY.is_dir():
        raise UsageError(f"this host has no {_SHARED_MEMORY}: give the memory tier a folder that lies in memory")
    return user_folder() / file_name(run_id)


def make_folder(folder: Path) -> PrivateFolder:
    """Make a folder that only this user can reach, and hold it until it is closed; raises `UsageError`.

    No sweep removes it while it is held.
    """
    for left in reversed(range(SWEPT_MAX)):
        found = _open(folder, make=True)
        assert found is not None
        is_held = found.hold()
        with contextlib.suppress(FileNotFoundError):
            # A sweep may have been faster. Where a file system has no locks there is none to wait for.
            if (is_held or not left) and os.path.samestat(folder.stat(), found.status()):
                return found
        found.close()
        time.sleep(SWEPT_PAUSE_S)
    raise UsageError(f"{folder} cannot be used: another process keeps removing it")


def find_folder(folder: Path) -> PrivateFolder | None:
    """Open a folder that only this user can reach and hold it; None if there is none. Raises `UsageError`."""
    found = _open(folder)
    if found is not None:
        found.hold()
    return found


def remove_folder(folder: Path) -> None:
    """Remove a run's states from memory; other files stay, and so does the folder then."""
    try:
        found = _open(folder)
    except (UsageError, OSError):
        return  # it is not ours, so none of our files are in it
    if found is not None:
        with found:
            _remove_slots(found, [name for name in found.names() if name.endswith(SUFFIX)])
    with contextlib.suppress(OSError):
        if found is not None:
            folder.rmdir()
        folder.parent.rmdir()  # unless other runs have theirs there


def sweep(root: Path, *, stale_s: float = STALE_S) -> list[Path]:
    """Remove the folders of runs that ended without removing theirs, and that were not used for long.

    Only a folder with nothing but slots is removed: no run leaves other files. Raises `UsageError` if the root is not
    this user's alone.
    """
    found = _open(root)
    if found is None:
        return []
    removed = []
    with found:
        for name in found.names():
            with contextlib.suppress(OSError, UsageError):  # it is no folder, not ours, or gone by now
                if _sweep_run(found, name, stale_s):
                    removed.append(root / name)
    return removed


def _sweep_run(root: PrivateFolder, name: str, stale_s: float) -> bool:
    if not stat.S_ISDIR(root.status(name).st_mode):
        return False
    with root.folder(name) as folder, contextlib.ExitStack() as owned:
        names = folder.names()
        if any(not each.endswith(SUFFIX) for each in names):
            return False
        last = max([folder.status().st_mtime, *(folder.status(each).st_mtime for each in names)])
        if time.time() - last < stale_s or not folder.hold(alone=True):
            return False
        for each in names:
            slot = folder.file(each, os.O_RDWR)
            owned.callback(os.close, slot)
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its owner is alive
        _remove_slots(folder, names)
        return root.rmdir(name)


def _remove_slots(folder: PrivateFolder, names: list[str]) -> None:
    for name in names:
        folder.unlink(name)


def user_folder() -> Path:
    """Return the folder of all this user's runs."""
    return _SHARED_MEMORY / user_folder_name()


def _open(folder: Path, *, make: bool = False) -> PrivateFolder | None:
    """Open a folder by the id of a run, below a folder that all users share, or one that the user named."""
    if user_folder() not in (folder, folder.parent):
        return own_folder(folder, make=make)
    names = folder.relative_to(_SHARED_MEMORY).parts
    return make_private(_SHARED_MEMORY, *names) if make else find_private(_SHARED_MEMORY, *names)
