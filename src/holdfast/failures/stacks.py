"""Stacks as data: where processes are, and how the stacks of many ranks are merged into a few. Pure.

Ranks with equal stacks are grouped, so that a rank that is elsewhere is easy to see:

    rank 7, stopped by a signal:
        load (data.py:31)
        <module> (train.py:12)
    ranks 0-6:
        all_reduce (distributed.py:2501)
        <module> (train.py:14)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import PeerError

#: How much is kept of one process: people read a report, and it is sent to every node.
THREADS_MAX = 16
FRAMES_MAX = 50
KERNEL_FRAMES_MAX = 12
TEXT_CHARS_MAX = 300
#: How many different stacks a report shows.
GROUPS_MAX = 12

#: The kernel's letter for a process that waits for something.
_SLEEPS = "S"
#: What the kernel's letters mean, where the state itself explains a hang.
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting in the kernel, uninterruptible",
    "Z": "dead",
    "X": "dead",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the function, its file, and the line in it (0 if unknown)."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's calls, the innermost first."""

    name: str
    frames: tuple[Frame, ...]
    is_main: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Where one process is.

    `state` is the kernel's letter and `wait` the kernel function that it waits in, where it may be read; `kernel` are
    the calls below that. `note` says why there are no Python frames, if there are none.
    """

    pid: int
    state: str = ""
    wait: str = ""
    kernel: tuple[str, ...] = ()
    threads: tuple[Thread, ...] = ()
    note: str = ""

    @property
    def main(self) -> tuple[Frame, ...]:
        """The calls of the main thread; of the first one where none is known as the main thread."""
        for thread in self.threads:
            if thread.is_main:
                return thread.frames
        return self.threads[0].frames if self.threads else ()

    def to_json(self) -> dict[str, Any]:
        """Describe the stack as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Stack:
        """Read what `to_json` wrote, here or on another node; what is too much is left out."""
        try:
            return cls(
                pid=int(data["pid"]),
                state=_text(data["state"])[:1],
                wait=_text(data["wait"]),
                kernel=tuple(map(_text, data["kernel"][:KERNEL_FRAMES_MAX])),
                threads=tuple(map(_thread, data["threads"][:THREADS_MAX])),
                note=_text(data["note"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"this is not a stack: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose main threads are in the same place, and the stack of the first of them."""

    ranks: tuple[int, ...]
    stack: Stack

    def to_json(self) -> dict[str, Any]:
        """Describe the group as plain JSON data."""
        return {"ranks": list(self.ranks), "stack": self.stack.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Group:
        """Read what `to_json` wrote."""
        try:
            return cls(tuple(map(int, data["ranks"])), Stack.from_json(data["stack"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"this is not a group of stacks: {error!r}") from error


def merge(stacks: Mapping[int, Stack]) -> tuple[Group, ...]:
    """Put ranks with equal stacks together; the rarest stack comes first, and equally rare ones by their ranks."""
    groups: dict[object, list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(_place(stacks[rank]), []).append(rank)
    found = [part for ranks in groups.values() for part in _by_line(ranks, stacks)]
    ordered = sorted(found, key=lambda ranks: (len(ranks), ranks[0]))
    return tuple(Group(tuple(ranks), stacks[ranks[0]]) for ranks in ordered)


def odd_ones(groups: Sequence[Group]) -> tuple[int, ...]:
    """Name the ranks that are elsewhere than most: those frozen by the system, else those of the one rarest stack.

    Empty if that is undecided: all are in one place, or two places are equally rare.
    """
    frozen = [rank for group in groups if group.stack.state in _STATES for rank in group.ranks]
    if frozen and len(frozen) < sum(len(group.ranks) for group in groups):
        return tuple(sorted(frozen))
    if len(groups) < 2 or len(groups[0].ranks) == len(groups[1].ranks):
        return ()
    return groups[0].ranks


def kept(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return as many groups as a report shows: the rarest, and the most common one to compare them with."""
    return tuple(groups) if len(groups) <= GROUPS_MAX else (*groups[: GROUPS_MAX - 1], groups[-1])


def render(groups: Sequence[Group]) -> str:
    """Return groups as text, each stack with its innermost call first."""
    lines: list[str] = []
    for group in kept(groups):
        lines += _group_lines(group)
    if len(groups) > GROUPS_MAX:
        left = sum(len(group.ranks) for group in groups[GROUPS_MAX - 1 : -1])
        lines.append(f"and {left} more ranks in {len(groups) - GROUPS_MAX} other places")
    return "\n".join(lines)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as short text: `rank 3`, `ranks 0-6, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


# -- small things --------------------------------------------------------------------------------------------


def _place(stack: Stack) -> object:
    """What makes two stacks equal at first: the main thread's calls, and their lines but for the innermost."""
    frames = stack.main
    calls = tuple((frame.function, frame.file, frame.line if depth else 0) for depth, frame in enumerate(frames))
    frozen = stack.state if stack.state in _STATES else ""
    return calls, frozen, "" if calls else stack.note


def _by_line(ranks: list[int], stacks: Mapping[int, Stack]) -> list[list[int]]:
    """Part ranks by the innermost line if all of them sleep there; one that runs may be in a loop over many lines."""
    if any(stacks[rank].state != _SLEEPS or not stacks[rank].main for rank in ranks):
        return [ranks]
    lines: dict[int, list[int]] = {}
    for rank in ranks:
        lines.setdefault(stacks[rank].main[0].line, []).append(rank)
    return list(lines.values())


def _group_lines(group: Group) -> list[str]:
    stack = group.stack
    state = _STATES.get(stack.state, "")
    wait = f", in the kernel's {stack.wait}" if stack.wait and (state or not stack.main) else ""
    lines = [f"{name_ranks(group.ranks)}{f', {state}' if state else ''}{wait}:"]
    lines += [f"    {_frame(frame)}" for frame in stack.main]
    if not stack.main:
        lines.append(f"    ({stack.note or 'no Python frames'})")
        lines += [f"    {call}" for call in stack.kernel]
    for thread in stack.threads:
        if thread.frames and thread.frames != stack.main:
            lines.append(f"    thread {thread.name}:")
            lines += [f"        {_frame(frame)}" for frame in thread.frames]
    return lines


def _frame(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _thread(data: Any) -> Thread:
    frames = tuple(
        Frame(_text(each["function"]), _text(each["file"]), int(each["line"])) for each in data["frames"][:FRAMES_MAX]
    )
    return Thread(_text(data["name"]), frames, bool(data["is_main"]))


def _text(value: Any) -> str:
    return str(value)[:TEXT_CHARS_MAX]
