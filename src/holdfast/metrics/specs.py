"""What `--metrics` says, as data. Pure.

    SPEC := [GROUP=]SINK[:ARGUMENT]        console   jsonl:run.jsonl   my_app=statsd:localhost:8125

Several stand beside each other with commas, or the flag is repeated; a comma that belongs to an argument is doubled.
Without a group a sink gets every group that has no sink of its own. Several sinks for one group all get its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import UsageError


@dataclass(frozen=True, slots=True)
class Spec:
    """One sink that was asked for: for which group (None: all others), by which name, with which argument."""

    group: str | None
    sink: str
    argument: str = ""

    def __str__(self) -> str:
        group = "" if self.group is None else f"{self.group}="
        argument = f":{self.argument}" if self.argument else ""
        return f"{group}{self.sink}{argument}"


def parse(texts: Iterable[str]) -> list[Spec]:
    """Read what the flag, all its repetitions together, or the variable says; the same thing twice counts once."""
    specs = [_parse_one(piece) for text in texts for piece in _split(text)]
    return list(dict.fromkeys(specs))


def join(specs: Sequence[Spec]) -> str:
    """Write specs as one text that `parse` reads back."""
    return ",".join(str(spec).replace(",", ",,") for spec in specs)


def unknown_sink(spec: Spec, known: Sequence[str]) -> UsageError:
    """Return the error for a sink that nobody brings."""
    import difflib  # only a mistake pays for it

    close = difflib.get_close_matches(spec.sink, known, 1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    if "/" in spec.sink or "." in spec.sink:
        hint = f"; for a file write jsonl:{spec.sink}"
    return UsageError(f"no metrics sink is called '{spec.sink}'; there are {', '.join(sorted(known))}{hint}")


def _split(text: str) -> list[str]:
    pieces = text.replace(",,", "\0").split(",")
    return [piece.replace("\0", ",").strip() for piece in pieces if piece.strip()]


def _parse_one(text: str) -> Spec:
    head, _, argument = text.partition(":")
    group, equals, sink = head.rpartition("=")
    if not sink.strip() or (equals and not group.strip()):
        raise UsageError(f"'{text}' names no metrics sink: write SINK, SINK:ARGUMENT or GROUP=SINK:ARGUMENT")
    return Spec(group.strip() if equals else None, sink.strip(), argument.strip())
