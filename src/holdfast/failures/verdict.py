"""The verdict: why a job ended, with the root cause out of many failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.failures.failure import Failure, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The job's exit code after a failure without a process, such as a lost node.
EXIT_CODE_UNKNOWN = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The failure that caused the others, and those others in their order of arrival."""

    cause: Failure
    others: tuple[Failure, ...] = ()

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: the cause's own code, 128+n for a signal, never 0."""
        code = self.cause.exit_code
        if not code:
            return EXIT_CODE_UNKNOWN
        return 128 - code if code < 0 else code

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        return f"{where(self.cause)}: {first_line(self.cause)}"

    def to_json(self) -> dict[str, Any]:
        """Describe the verdict as plain JSON data."""
        return {"cause": self.cause.to_json(), "others": [failure.to_json() for failure in self.others]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Read what `to_json` wrote, so that every agent can print the same verdict."""
        return cls(Failure.from_json(data["cause"]), tuple(map(Failure.from_json, data.get("others", ()))))


def root_cause(failures: Sequence[Failure]) -> Verdict:
    """Pick the first true failure, in order of arrival; without one, the first victim; else the first of all.

    A failure that ends the job goes first: it is why there is no restart.

    The order is that of arrival at one place (the coordinator, or this agent). No clock is compared.
    """
    assert failures, "there is no root cause without a failure"
    chosen = min(range(len(failures)), key=lambda index: (_weight(failures[index]), index))
    return Verdict(failures[chosen], tuple(f for index, f in enumerate(failures) if index != chosen))


def _weight(failure: Failure) -> int:
    if failure.is_true:
        return -1 if failure.ends_job else 0
    return 1 if failure.kind is Kind.VICTIM else 2


def where(failure: Failure) -> str:
    """Return which worker of which host this is: `rank 3 (local rank 1, pid 4711) on node7`."""
    if failure.rank is None and failure.local_rank is None:
        return f"node {failure.host or failure.node}"
    details = []
    if failure.rank is not None and failure.local_rank is not None:
        details.append(f"local rank {failure.local_rank}")
    if failure.pid is not None:
        details.append(f"pid {failure.pid}")
    who = f"rank {failure.rank}" if failure.rank is not None else f"local rank {failure.local_rank}"
    inside = f" ({', '.join(details)})" if details else ""
    host = f" on {failure.host}" if failure.host else ""
    return who + inside + host


def first_line(failure: Failure) -> str:
    """The failure's message, or what stands for it, in one line."""
    lines = failure.message.strip().splitlines()
    return lines[0] if lines else failure.kind.value.replace("_", " ")
