"""What can be wrong with the name of a component, or with the function behind it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import HoldfastError


class HelpRequested(HoldfastError):
    """`--help` was given; the message is the help."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a component, a module of components, or an entry point."""

    #: The component, the module, or the entry point.
    subject: str
    reason: str
    path: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}:{'' if self.line is None else f'{self.line}:'} "
        return f"{place}{self.subject}: {self.reason}"
