"""When to save a checkpoint, which one to restore, and which ones may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.keys import Entry, Key
from holdfast.errors import UsageError

#: Where a shard is read from first.
NEAREST = ("memory", "neighbour", "storage")
#: How many newer checkpoints that could not be used the sentence names.
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Group:
    """One checkpoint: every shard and where it is kept."""

    step: int
    origin: str
    world: int
    holders: dict[int, list[Entry]] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The shards that no tier has."""
        return [shard for shard in range(self.world) if shard not in self.holders]

    @property
    def is_complete(self) -> bool:
        """Whether every shard is in some tier."""
        return len(self.holders) == self.world

    @property
    def name(self) -> tuple[int, str, int]:
        """Its identity: step, origin and world size."""
        return self.step, self.origin, self.world


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint that was chosen, or None, and why: as a sentence and as data."""

    group: Group | None
    sentence: str
    data: dict[str, Any]


def group_up(entries: Iterable[Entry]) -> list[Group]:
    """Group shards into checkpoints, the newest first; the copies of each shard are ordered from near to far."""
    groups: dict[tuple[int, str, int], Group] = {}
    for entry in entries:
        key = entry.key
        group = groups.setdefault((key.step, key.origin, key.world), Group(key.step, key.origin, key.world))
        holders = group.holders.setdefault(key.shard, [])
        if entry not in holders:
            holders.append(entry)
    for group in groups.values():
        for holders in group.holders.values():
            holders.sort(key=lambda entry: (distance(entry.tier), entry.place))
    return sorted(groups.values(), key=lambda group: (group.step, _recency(group.origin), group.world), reverse=True)


def choose(
    entries: Iterable[Entry],
    *,
    step: int | None = None,
    after: int | None = None,
    refused: dict[tuple[int, str, int], str] | None = None,
) -> Choice:
    """Choose the newest checkpoint that is complete over all tiers together, or the one of `step`.

    With `after` none of this step or an earlier one is chosen. `refused` has the checkpoints that could not be read,
    with the reason.
    """
    refused = refused or {}
    passed: list[str] = []
    for group in group_up(entries):
        if (step is not None and group.step != step) or (after is not None and group.step <= after):
            continue
        if group.name in refused:
            passed.append(f"step {group.step} cannot be read ({refused[group.name]})")
        elif not group.is_complete:
            passed.append(f"step {group.step} lacks {_shards(group.missing)} of {group.world}")
        else:
            return _chosen(group, passed)
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    what += "" if after is None else f" after step {after}"
    why = f": {'; '.join(passed[:NAMED_MAX])}" if passed else ""
    found = "was found" if not passed else "is complete"
    return Choice(None, f"{what} {found}{why}", {"step": None, "passed_over": passed})


def _chosen(group: Group, passed: Sequence[str]) -> Choice:
    tiers = [holders[0].tier for _, holders in sorted(group.holders.items())]
    counts = {tier: tiers.count(tier) for tier in sorted(set(tiers), key=distance)}
    from_where = ", ".join(
        tier if group.world == 1 else f"{count} of {group.world} shards in {tier}" for tier, count in counts.items()
    )
    sentence = f"step {group.step} is the newest complete checkpoint ({from_where})"
    if passed:
        sentence += f"; passed over: {'; '.join(passed[:NAMED_MAX])}"
    data = {
        "step": group.step,
        "origin": group.origin,
        "world": group.world,
        "tiers": counts,
        "passed_over": list(passed),
    }
    return Choice(group, sentence, data)


def oldest_kept(keys: Collection[Key], keep: int) -> int | None:
    """Return the oldest of the `keep` newest complete steps: only steps before it may be deleted.

    None if there are fewer, so that nothing may be deleted.
    """
    assert keep >= 1, "the newest complete checkpoint is never dropped"
    groups = group_up(Entry(key, 0, "") for key in keys)
    complete = list(dict.fromkeys(group.step for group in groups if group.is_complete))
    return complete[keep - 1] if len(complete) >= keep else None


def _recency(origin: str) -> tuple[int, str]:
    """Order origins of one step by round; by name alone, because every worker must choose the same."""
    last = origin.rpartition(".")[2]
    return (int(last) if last.isdecimal() else -1), origin


def distance(tier: str) -> int:
    """Return how far away a tier is: 0 for this node's memory; unknown tiers come last."""
    return NEAREST.index(tier) if tier in NEAREST else len(NEAREST)


def _shards(numbers: Sequence[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:NAMED_MAX])
    more = f" and {len(numbers) - NAMED_MAX} more" if len(numbers) > NAMED_MAX else ""
    return f"shard{'s' if len(numbers) > 1 else ''} {named}{more}"


class Every:
    """Decides when a checkpoint is due: every so many steps or minutes, whichever comes first.

    Steps are the same on every worker; minutes are not. Where each worker saves its own shard, count in steps, or let
    one worker decide for all.
    """

    def __init__(self, steps: int | None = None, minutes: float | None = None) -> None:
        if (steps is None and minutes is None) or (steps is not None and steps < 1):
            raise UsageError("say how often to save: Every(steps=100), Every(minutes=5), or both")
        self.steps = steps
        self.minutes = minutes
        self._step: int | None = None
        self._at: float | None = None

    def is_due(self, step: int, now: float) -> bool:
        """Return whether to save a checkpoint of this step; the first call starts the count."""
        if self._step is None or self._at is None:
            self._step, self._at = step, now
            return False
        if self.steps is not None and step // self.steps > self._step // self.steps:
            return True
        return self.minutes is not None and now - self._at >= self.minutes * 60

    def saved(self, step: int, now: float) -> None:
        """Start counting from here."""
        self._step, self._at = step, now
