"""Hangs: when a gang whose heartbeats stopped counts as stuck, and which rank is to blame. Pure.

It decides how long a worker may be silent, learned from its beats so far, and when that time is over. It does not know
where beats are written, what a stack is, or how workers are killed.

The rules:

1. A worker is not judged while it pauses, nor alone before its own first beat. The first beats have a limit of their
   own: they include compiling, filling caches and first collectives.
2. The limit is `multiple` times the longest time between two beats that any worker of the gang has shown, and at least
   `floor_s`. A slow step, an evaluation or a checkpoint raises it for good. A fixed `limit_s` replaces all that.
3. One silent worker makes the gang stuck: in training the others wait for it. It is reported once per gang. The
   ranks that are least far are named first; a rank without any beat, while others have beaten, comes before all. A
   worker that was started after the silence began, in the place of one that died, has not caused it: it is named last
   while it may still be starting.
4. A report may have been a false alarm. Each one doubles the learned limit, so the same evaluation that looked like a
   hang once does not end every attempt.
5. A gang that has not begun to beat may be one that never will. It is judged only with a `start_s`, or where one of its
   ranks has beaten in a gang before: then it may take as long as the first beats, and `multiple` times as long as any
   start so far.
6. Time in which this process itself did not run does not count: after a late look, silence is counted from there.
7. A gang that has not begun to beat is also judged by its stillness: when none of its workers has computed, written or
   communicated for `limit_s`, or for `still_s` if the limit is learned. A worker of another node may be at work while
   ours wait for it, so the other nodes are asked first; while one of theirs moves, nothing is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.timer.machine import LATE_S, LOOK_S

LOOK_S_MIN = 0.05
#: How often a report can double the limit.
DOUBLINGS_MAX = 5


class HangOptions(msgspec.Struct, frozen=True):
    """How long workers may be silent: `limit_s`, or learned where that is None.

    `start_s` is how long a gang may take to its first beat; None waits for ever the first time.
    """

    limit_s: float | None = None
    floor_s: float = 300.0
    multiple: float = 10.0
    warm_up_beats: int = 3
    warm_up_s: float = 1800.0
    start_s: float | None = None
    #: How long a gang that does not beat may do nothing at all, where the limit is learned.
    still_s: float = 600.0


class Beat(msgspec.Struct, frozen=True):
    """The beats of a worker: their number, the time of the last (None: never, or it pauses), and the longest gap.

    `began` is when the worker was started.
    """

    count: int = 0
    last: float | None = None
    longest_s: float = 0.0
    step: int = 0
    began: float = 0.0


class GangStarted(msgspec.Struct, frozen=True):
    """Workers were started; the ones before no longer count."""


class BeatsSeen(msgspec.Struct, frozen=True):
    """The beats of all workers that run, by rank, as they are now, and how long all of them have been still.

    `still_s` is None if that cannot be seen.
    """

    beats: Mapping[int, Beat] = {}
    still_s: float | None = None


class OthersSeen(msgspec.Struct, frozen=True):
    """The other nodes' answers: how long all their workers have been still; None if one did not answer."""

    still_s: float | None


HangEvent = GangStarted | BeatsSeen | OthersSeen


class AskOthers(msgspec.Struct, frozen=True):
    """All workers here are still: ask the other nodes how long theirs have been. `OthersSeen` brings the answer."""


class NoBeatsYet(msgspec.Struct, frozen=True):
    """The gang does not beat. Its hangs are found by stillness (`limit_s`), or not at all if that is None."""

    limit_s: float | None


class GangStuck(msgspec.Struct, frozen=True):
    """The gang has come to a halt. `suspects` are all ranks, those that are least far first.

    `newcomers` are those of them that were started after the silence began, and may still be starting. `is_still`
    means that there were no heartbeats to miss: the workers do nothing at all.
    """

    suspects: tuple[int, ...]
    silent_s: float
    limit_s: float
    is_still: bool = False
    newcomers: frozenset[int] = frozenset()


HangEffect = GangStuck | AskOthers | NoBeatsYet


class HangMachine:
    """Decides for one gang after the other; see the module's opening."""

    def __init__(self, options: HangOptions) -> None:
        self.options = options
        self._reports = 0
        self._told = False
        self._last_look: float | None = None
        self._started = 0.0
        #: Whether the gang has begun to beat, how long the slowest start took, and which ranks have ever beaten.
        self._begun = False
        self._slowest_start_s = 0.0
        self._beaten: set[int] = set()
        #: Silence before this moment does not count.
        self._since = 0.0
        self._next_limit = float("inf")
        #: Stillness: what was seen last, since when, and the moment from which on the other nodes may be asked again.
        self._beats: Mapping[int, Beat] = {}
        self._still_since: float | None = None
        self._ask_from = 0.0
        self._told_no_beats = False

    def handle(self, event: HangEvent, now: float) -> list[HangEffect]:
        """Decide what one event means."""
        if isinstance(event, GangStarted):
            self._told, self._begun = False, False
            self._started = self._last_look = self._since = now
            self._next_limit = float("inf")
            self._still_since, self._ask_from = None, now
            return []
        if isinstance(event, OthersSeen):
            return self._judge_stillness(event, now)
        if self._last_look is not None and now - self._last_look > self._look_s() + LATE_S:
            self._since = now
        self._last_look = now
        self._note_start(event.beats, now)
        if self._told or not event.beats:
            return []
        if self._begun:
            return self._judge(event.beats, now)
        return self._judge_start(event.beats, now) or self._look_for_stillness(event, now)

    def wakeup(self) -> float | None:
        """Return when to look at the beats next; None while there is nothing to find."""
        if self._told or self._last_look is None:
            return None
        return min(self._next_limit, self._last_look + self._look_s())

    def limit_s(self, beats: Mapping[int, Beat], rank: int) -> float:
        """Return how long this worker may be silent, from the beats of all."""
        options = self.options
        if options.limit_s is not None:
            return options.limit_s
        longest = max((beat.longest_s for beat in beats.values()), default=0.0)
        learned = max(options.floor_s, options.multiple * longest) * 2.0**self._reports
        is_warm = beats[rank].count > options.warm_up_beats
        return learned if is_warm else max(learned, options.warm_up_s)

    def start_limit_s(self, beats: Mapping[int, Beat]) -> float | None:
        """How long the gang may take to its first beat; None if it may never beat at all."""
        options = self.options
        if options.start_s is not None:
            return options.start_s
        if self._beaten.isdisjoint(beats):
            return None
        return max(options.warm_up_s, options.multiple * self._slowest_start_s) * 2.0**self._reports

    def still_limit_s(self) -> float:
        """How long a gang that does not beat may do nothing at all."""
        options = self.options
        return options.limit_s if options.limit_s is not None else options.still_s * 2.0**self._reports

    def check(self) -> None:
        """Assert every invariant."""
        assert 0 <= self._reports <= DOUBLINGS_MAX

    def snapshot(self) -> dict[str, Any]:
        """Describe the machine as plain data."""
        return {"reports": self._reports, "told": self._told}

    def _note_start(self, beats: Mapping[int, Beat], now: float) -> None:
        beating = [rank for rank, beat in beats.items() if beat.count]
        if beating and not self._begun:
            self._begun = True
            self._slowest_start_s = max(self._slowest_start_s, now - self._started)
        self._beaten.update(beating)

    def _judge_start(self, beats: Mapping[int, Beat], now: float) -> list[HangEffect]:
        limit = self.start_limit_s(beats)
        self._next_limit = float("inf") if limit is None else self._since + limit
        return [] if limit is None or now < self._next_limit else self._stuck(beats, now - self._started, limit)

    def _judge(self, beats: Mapping[int, Beat], now: float) -> list[HangEffect]:
        self._next_limit = float("inf")
        for rank, beat in beats.items():
            if beat.last is None:
                continue
            silent_since = max(beat.last, self._since)
            limit = self.limit_s(beats, rank)
            if now >= silent_since + limit:
                return self._stuck(beats, now - beat.last, limit, newcomers=self._newcomers(beats, beat.last, now))
            self._next_limit = min(self._next_limit, silent_since + limit)
        return []

    def _look_for_stillness(self, seen: BeatsSeen, now: float) -> list[HangEffect]:
        """Ask the other nodes once all workers here have been still for long enough; tell once that none has beaten."""
        limit, effects = self.still_limit_s(), list[HangEffect]()
        can_see = seen.still_s is not None
        if not self._told_no_beats and (now - self._since >= limit or not can_see):
            self._told_no_beats = True
            effects.append(NoBeatsYet(limit if can_see else None))
        self._beats = seen.beats
        self._still_since = None if seen.still_s is None else max(now - seen.still_s, self._since)
        if self._still_since is not None and now - self._still_since >= limit and now >= self._ask_from:
            self._ask_from = now + limit  # one rank may evaluate for hours while all others wait: ask rarely
            effects.append(AskOthers())
        return effects

    def _judge_stillness(self, others: OthersSeen, now: float) -> list[HangEffect]:
        limit = self.still_limit_s()
        if self._told or self._begun or self._still_since is None or others.still_s is None:
            return []
        still_s = min(now - self._still_since, others.still_s)
        return self._stuck(self._beats, still_s, limit, is_still=True) if still_s >= limit else []

    def _newcomers(self, beats: Mapping[int, Beat], silent_since: float, now: float) -> frozenset[int]:
        limit = self.start_limit_s(beats) or self.options.warm_up_s
        return frozenset(
            rank
            for rank, beat in beats.items()
            if not beat.count and beat.began > silent_since and now - beat.began < limit
        )

    def _stuck(
        self,
        beats: Mapping[int, Beat],
        silent_s: float,
        limit_s: float,
        *,
        is_still: bool = False,
        newcomers: frozenset[int] = frozenset(),
    ) -> list[HangEffect]:
        self._told = True
        self._reports = min(self._reports + 1, DOUBLINGS_MAX)
        return [GangStuck(_by_progress(beats, newcomers), silent_s, limit_s, is_still, newcomers)]

    def _look_s(self) -> float:
        limit = self.options.limit_s if self.options.limit_s is not None else self.options.floor_s
        return max(min(LOOK_S, limit / 4), LOOK_S_MIN)


def _by_progress(beats: Mapping[int, Beat], newcomers: frozenset[int]) -> tuple[int, ...]:
    """Order ranks by how far they are; a rank that pauses does not wait for others and comes last, before newcomers."""

    def progress(rank: int) -> tuple[bool, bool, int, float, int]:
        beat = beats[rank]
        return rank in newcomers, beat.count > 0 and beat.last is None, beat.count, beat.last or 0.0, rank

    return tuple(sorted(beats, key=progress))
