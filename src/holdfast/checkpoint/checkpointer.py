"""The checkpointer: copies the state while training waits, and does the rest in the background.

    checkpoints = Checkpointer([MemoryTier(), StorageTier("s3://bucket/run", keep=3, every=1000)])
    found = checkpoints.restore()
    step, tree = (found.step, found.tree) if found else (0, fresh)
    ...
    checkpoints.save(step, tree)

A save that fails is reported as a fact, and training goes on.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

from holdfast.checkpoint import snapshot, telling
from holdfast.checkpoint.checksums import checksum
from holdfast.checkpoint.choose import Choice, Every, Group, choose, distance
from holdfast.checkpoint.keys import ALONE, Entry, Key, make_origin
from holdfast.checkpoint.loading import load_dealt, load_whole
from holdfast.checkpoint.memory import MemoryTier
from holdfast.checkpoint.ranges import Deal, deal_evenly
from holdfast.checkpoint.tier import Shard, Tier
from holdfast.errors import HoldfastError, UsageError
from holdfast.facts import facts
from holdfast.quantities import to_seconds
from holdfast.threads import start_thread

#: Sends each worker's bytes to all workers, in the order of their ranks.
Gather = Callable[[bytes], list[bytes]]
#: How long a save waits for the one before it.
WAIT_S = 600.0


@dataclass(frozen=True)
class Restored:
    """A restored state, its step, and why it was chosen, as a sentence and as data."""

    step: int
    tree: Any
    sentence: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Job:
    key: Key
    buffer: snapshot.Buffer
    nbytes: int
    blocked_ms: float
    tiers: list[Tier]
    in_memory: bool


class Checkpointer:
    """Saves and restores a state over several tiers.

    At most `in_flight` snapshots are being written to slow tiers at once. A save beyond that waits for the one before
    it (`when_busy="wait"`, the same on all workers), or skips the slow tiers this time and reports it (`"skip"`).
    Workers with a shard each use `gather` to agree on what to restore: a collective such as `run.ring.all_gather`;
    without one they use the store of their round, if there is one.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        in_flight: int = 1,
        when_busy: Literal["wait", "skip"] = "wait",
        every: Every | None = None,
        gather: Gather | None = None,
        origin: str | None = None,
    ) -> None:
        if not tiers:
            raise UsageError("a checkpointer needs at least one tier to keep states in")
        if len({tier.name for tier in tiers}) < len(tiers):
            raise UsageError("two tiers have the same name: give one of them another, as in StorageTier(name=...)")
        if in_flight < 1:
            raise UsageError(f"in_flight={in_flight} would save nothing: give at least 1")
        if when_busy not in ("wait", "skip"):
            raise UsageError(f"when_busy is 'wait' or 'skip', not {when_busy!r}")
        self.tiers = list(tiers)
        self.every = every
        self.gather = gather
        #: The round and run in which states are made; to be set again when a round begins inside the process.
        self.origin = origin if origin is not None else _origin_from_environ()
        self._memory = next((tier for tier in tiers if isinstance(tier, MemoryTier)), None)
        self._slow = [tier for tier in tiers if tier is not self._memory]
        self._in_flight = in_flight
        self._when_busy = when_busy
        if self._memory is not None:
            self._memory.allow(in_flight if self._slow else 0)
        self._pool = snapshot.PrivatePool(in_flight)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        #: Snapshots that the background thread has not finished, and those of them that go to slow tiers.
        self._pending = self._pending_slow = 0
        self._changed = threading.Condition()
        self._gave_up = False
        self._thread: threading.Thread | None = None
        self._agreements = 0
        #: Tiers that are being looked at with a limit, and may not have answered yet.
        self._looks: dict[str, threading.Thread] = {}

    # -- saving ----------------------------------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Return whether a checkpoint is due by `every`."""
        return self.every is not None and self.every.is_due(step, time.monotonic())

    def save(self, step: int, state: Any, shard: tuple[int, int] = ALONE) -> bool:
        """Copy a state, or this worker's shard of it; the tiers follow in the background.

        Returns whether the copy was made. A state that cannot be written at all raises `UsageError`; any other failure
        is reported as a fact.
        """
        began = time.monotonic()
        key = Key(step, self.origin, shard[1], shard[0])
        made = snapshot.outline(_tree_of(state))
        tiers = [tier for tier in self._slow if step % tier.every == 0]
        in_memory = self._memory is not None and step % self._memory.every == 0
        if self.every is not None:
            self.every.saved(step, began)
        if not tiers and not in_memory:
            return False
        try:
            tiers = self._wait_for_turn(key, tiers)
            buffer = self._take(key, made.nbytes, in_memory=in_memory) if tiers or in_memory else None
            if buffer is None:
                return False
            snapshot.copy(made, buffer.state(made.nbytes))
            if in_memory and self._memory is not None:
                self._memory.commit(buffer, key, made.nbytes)  # type: ignore[arg-type]  # a slot, as it is in memory
        except Exception as error:  # noqa: BLE001 - a save that fails must not end the training
            telling.failed(step, "memory", error)
            return False
        blocked_ms = (time.monotonic() - began) * 1000
        self._submit(_Job(key, buffer, made.nbytes, blocked_ms, tiers, in_memory))
        return True

    def prepare(self, state: Any, shard: tuple[int, int] = ALONE) -> None:
        """Allocate memory for states of this size now, so that the first save does not wait for it."""
        made = snapshot.outline(_tree_of(state))
        buffers: Sequence[snapshot.Buffer]
        if self._memory is not None:
            buffers = self._memory.shelf(shard[0]).reserve(made.nbytes)
        else:
            buffers = self._pool.reserve(made.nbytes)
        snapshot.prepare(made, buffers)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until every save has reached its tiers or failed; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, None if timeout is None else to_seconds(timeout))

    def close(self, timeout: float | timedelta | None = WAIT_S) -> bool:
        """Wait for the saves in flight and close everything; return whether all of them arrived."""
        done = self.wait(timeout)
        if self._thread is not None:
            self._jobs.put(None)
            if done:
                self._thread.join()
            self._thread = None
        if done:
            for tier in self.tiers:
                tier.close()
            self._pool.close()
        return done

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for_turn(self, key: Key, tiers: list[Tier]) -> list[Tier]:
        """Wait until slow tiers can take one more; return the tiers of this state, none if it must not wait."""
        if not tiers:
            return []
        # Training waits once for a tier that hangs, not at every save.
        patience_s = WAIT_S if self._when_busy == "wait" and not self._gave_up else 0.0
        with self._changed:
            free = self._changed.wait_for(lambda: self._pending_slow < self._in_flight, patience_s)
        self._gave_up = not free
        if free:
            return tiers
        for tier in tiers:
            telling.failed(key.step, tier.name, "the save before it is still on its way", skipped=True)
        return []

    def _take(self, key: Key, nbytes: int, *, in_memory: bool) -> snapshot.Buffer | None:
        if in_memory and self._memory is not None:
            buffer: snapshot.Buffer | None = self._memory.take(key.shard, nbytes)
        else:
            buffer = self._pool.take(nbytes)
        if buffer is None:
            telling.failed(key.step, "memory", "all memory for snapshots is in use", skipped=True)
        return buffer

    # -- in the background -------------------------------------------------------------------------------------------

    def _submit(self, job: _Job) -> None:
        job.buffer.held = bool(job.tiers)
        with self._changed:
            self._pending += 1
            self._pending_slow += bool(job.tiers)
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(self._work, "holdfast checkpoints")
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._keep(job)
            except Exception as error:  # noqa: BLE001 - the saves behind this one would wait for ever
                facts.unexpected("keeping a checkpoint", error, f"step {job.key.step} may be missing from its tiers")
            finally:
                with self._changed:
                    job.buffer.held = False
                    self._pending -= 1
                    self._pending_slow -= bool(job.tiers)
                    self._changed.notify_all()

    def _keep(self, job: _Job) -> None:
        if job.in_memory:
            telling.written(job.key, "memory", job.nbytes, job.blocked_ms, job.blocked_ms)
        if not job.tiers:
            return
        state = job.buffer.state(job.nbytes)
        sums = checksum(state)
        for tier in job.tiers:
            began = time.monotonic()
            try:
                tier.save(job.key, state, sums)
            except Exception as error:  # noqa: BLE001 - the failure of one tier must not affect the others
                telling.failed(job.key.step, tier.name, error)
            else:
                took_ms = (time.monotonic() - began) * 1000
                telling.written(job.key, tier.name, job.nbytes, took_ms, job.blocked_ms)

    # -- restoring -------------------------------------------------------------------------------------------------

    def latest(self, shard: tuple[int, int] = ALONE, *, timeout: float | timedelta | None = None) -> Choice:
        """Return which checkpoint would be restored, and why; workers with a shard each must call this together.

        With `timeout`, a tier that fails in any way or has not listed its checkpoints by then is reported and left out.
        """
        return choose(self._inventory(shard, None if timeout is None else to_seconds(timeout)))

    def restore(
        self,
        shard: tuple[int, int] = ALONE,
        *,
        step: int | None = None,
        after: int | None = None,
        timeout: float | timedelta | None = None,
        into: Any = None,
        deal: Deal = deal_evenly,
    ) -> Restored | None:
        """Return the newest checkpoint that is complete over all tiers together, or None.

        Workers with a shard each must call this together. If another number of workers saved the state, each gets its
        part by `deal` of the arrays declared as `FlatSlice`, and the rest from shard `rank % saved world`. A checkpoint
        that cannot be read is reported as a fact, and the next best is taken; with `after`, only one of a later step
        than this. `timeout` is that of `latest`. `into` is a state with `apply_snapshot`.
        """
        entries = self._inventory(shard, None if timeout is None else to_seconds(timeout))
        refusals: dict[tuple[int, str, int], str] = {}
        while True:
            choice = choose(entries, step=step, after=after, refused=refusals)
            if choice.group is None:
                telling.absent(choice.sentence, choice.data)
                return None
            restored, trouble = self._read_group(choice, choice.group, shard, deal)
            troubles = [text.decode() for text in self._gather(trouble.encode(errors="backslashreplace"), shard)]
            first = next((text for text in troubles if text), None)
            if first is None:
                break
            refusals[choice.group.name] = first
        assert restored is not None
        if self._memory is not None:
            self._memory.settle(shard[0], restored.step)
        if into is not None:
            into.apply_snapshot(restored.tree)
        return restored

    def _read_group(
        self, choice: Choice, group: Group, shard: tuple[int, int], deal: Deal
    ) -> tuple[Restored | None, str]:
        began = time.monotonic()
        rank, world = shard
        needed = [rank] if world == group.world else list(range(group.world))
        opened: dict[int, Shard] = {}
        excluded: set[Entry] = set()
        while True:
            used: dict[int, Entry] = {}
            try:
                for number in needed:
                    used[number], opened[number] = self._open(group.holders[number], excluded)
                try:
                    tree = load_whole(opened[rank]) if world == group.world else load_dealt(opened, rank, world, deal)
                except (OSError, HoldfastError) as error:
                    # It is unknown which of several shards it was: no copy outside of storage is used again.
                    suspects = [entry for entry in used.values() if len(used) == 1 or entry.tier != "storage"]
                    for entry in suspects:
                        self._refuse(entry, error, excluded)
                    if not suspects:
                        return None, str(error)
                    continue
            except LookupError as error:
                return None, str(error.args[0])
            finally:
                for each in opened.values():
                    each.close()
            tiers = sorted({entry.tier for entry in used.values()}, key=distance)
            took_ms = (time.monotonic() - began) * 1000
            nbytes = sum(entry.nbytes for entry in used.values())
            data = {**choice.data, "shard": rank, "of": world, "from": tiers}
            telling.read(data, tiers[0], nbytes, took_ms, choice.sentence)
            return Restored(group.step, tree, choice.sentence, data), ""

    def _open(self, holders: Sequence[Entry], excluded: set[Entry]) -> tuple[Entry, Shard]:
        """Open the nearest copy that can be opened; raises `LookupError` with the reason if none can."""
        reason = "no tier of this worker reaches it"
        for entry in holders:
            tier = next((tier for tier in self.tiers if tier.name == entry.tier), None)
            if tier is None or entry in excluded:
                continue
            try:
                return entry, tier.open(entry)
            except (HoldfastError, OSError) as error:
                reason = str(error)
                self._refuse(entry, error, excluded)
        key = holders[0].key
        raise LookupError(f"shard {key.shard} of {key.world}: {reason}")

    def _refuse(self, entry: Entry, error: BaseException, excluded: set[Entry]) -> None:
        excluded.add(entry)
        telling.refused(entry.key.step, entry.tier, entry.place, error)

    # -- agreeing --------------------------------------------------------------------------------------------------

    def _inventory(self, shard: tuple[int, int], limit_s: float | None = None) -> list[Entry]:
        """Return the shards that all workers together can see."""
        alone = shard[1] == 1
        deadline = None if limit_s is None else time.monotonic() + limit_s
        entries: list[Entry] = []
        for tier in self.tiers:
            # Storage is the same for all; a neighbour's memory is listed by the workers who live there.
            if not alone and (
                (tier.name == "storage" and shard[0] != 0) or (tier.name == "neighbour" and self._memory is not None)
            ):
                continue
            try:
                entries += tier.entries() if deadline is None else self._list_until(tier, deadline)
            except (HoldfastError, OSError) as error:
                telling.refused(-1, tier.name, "", error)
        told = json.dumps([[*_told(entry)] for entry in entries]).encode()
        here = self._memory.place if self._memory is not None else None
        found: list[Entry] = []
        for text in self._gather(told, shard):
            found += [_heard(one, here) for one in json.loads(text)]
        return found

    def _list_until(self, tier: Tier, deadline: float) -> list[Entry]:
        """List a tier on a thread of its own; raises `OSError` if it fails or has not answered by the deadline."""
        answer: queue.SimpleQueue[list[Entry] | Exception] = queue.SimpleQueue()

        def look() -> None:
            try:
                answer.put(tier.entries())
            except Exception as error:  # noqa: BLE001 - whatever a storage raises is for the one that waits
                answer.put(error)

        before = self._looks.get(tier.name)
        if before is not None and before.is_alive():
            raise TimeoutError("it was asked what it has a while ago, and has not answered yet")
        self._looks[tier.name] = start_thread(look, f"holdfast checkpoints in {tier.name}")
        try:
            found = answer.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise TimeoutError("it does not answer when it is asked what it has") from None
        if isinstance(found, Exception):
            raise OSError(f"{type(found).__name__}: {found}") from found
        return found

    def _gather(self, data: bytes, shard: tuple[int, int]) -> list[bytes]:
        if shard[1] == 1:
            return [data]
        if self.gather is not None:
            return self.gather(data)
        from holdfast.store.environ import from_environ

        try:
            store = from_environ()
        except UsageError:
            raise UsageError(
                "workers with a shard each must agree on what to restore: give Checkpointer(gather=...) a function "
                "that hands every worker's bytes to all of them, or start them with `holdfast launch`"
            ) from None
        self._agreements += 1
        keys = [f"checkpoint/{self._agreements}/{rank}" for rank in range(shard[1])]
        with store:
            store.set(keys[shard[0]], data)
            return store.multi_get(keys)


def _told(entry: Entry) -> tuple[Any, ...]:
    key = entry.key
    return key.step, key.origin, key.world, key.shard, entry.nbytes, entry.tier, entry.place


def _heard(one: list[Any], here: str | None) -> Entry:
    step, origin, world, shard, nbytes, tier, place = one
    entry = Entry(Key(step, origin, world, shard), nbytes, tier, place)
    # Another worker's memory is a neighbour's memory for us.
    return replace(entry, tier="neighbour") if tier == "memory" and place != here else entry


def _tree_of(state: Any) -> Any:
    """Return the tree of a state: itself, or what it says its tree or its snapshot is."""
    if isinstance(state, dict | list | tuple):
        return state
    for name in ("tree", "capture_snapshot"):
        method = getattr(state, name, None)
        if callable(method):
            return method()
    return state


def _origin_from_environ() -> str:
    run = os.environ.get("TORCHELASTIC_RUN_ID") or "local"
    number = os.environ.get("HOLDFAST_ROUND") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    return make_origin(run, number)
