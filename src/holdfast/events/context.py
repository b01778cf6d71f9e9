"""What events and journal lines say about where they come from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.facts import Fact


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run and the agent that tells about it, and what the agent's own facts have said so far."""

    run: str
    host: str
    pid: int
    node: str = ""
    role: str = ""
    rdzv_backend: str = ""
    entrypoint: str = ""
    group_rank: int | None = None
    group_world_size: int | None = None
    restarts_used: int = 0

    def after(self, fact: Fact) -> RunContext:
        """Return what is known once a fact has happened."""
        if fact.kind != "workers_started":
            return self
        data = fact.data
        return replace(
            self,
            group_rank=data.get("group_rank", self.group_rank),
            group_world_size=data.get("group_world_size", self.group_world_size),
            restarts_used=data.get("restarts_used", self.restarts_used),
        )

    def concerns(self, fact: Fact) -> bool:
        """Whether a fact belongs to this run; a coordinator in the same process may serve others."""
        return str(fact.data.get("run", self.run)) == self.run
