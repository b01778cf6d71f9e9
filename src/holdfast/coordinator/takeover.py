"""What a coordinator that can move knows beyond its runs: where others may carry one, and when to look there. Pure.

A coordinator asks the agents of the last round that do not follow it whether one of them carries the coordinator with a
better claim, and one that took over asks the address where all nodes begin. So two coordinators that each have their
nodes find each other, and one of them steps down; and an agent that is started again where the first coordinator was
finds the run before it begins one of its own. While all nodes follow the first coordinator there is nothing to ask.
"""

from __future__ import annotations

from holdfast.coordinator.messages import Claim
from holdfast.coordinator.run import RunMachine

#: How often others are asked; less than a first gathering waits for more nodes.
SEEK_S = 0.5


class Takeover:
    """The other places where one coordinator's runs may be carried."""

    def __init__(self, address: str, home: str) -> None:
        #: Where others reach this coordinator.
        self._address = address
        #: Where every node looks first, if that is not here.
        self.home = home
        #: Runs that are carried elsewhere, and where; an empty address if that is not known.
        self.elsewhere: dict[str, str] = {}
        #: By guardian, the runs that wait for a quorum of its nodes.
        self.pending: dict[str, dict[str, None]] = {}
        self._seek_at: dict[str, float] = {}
        #: By run, the places that were asked since the last look: agents that name each other are asked once.
        self._asked: dict[str, dict[str, None]] = {}

    def wakeup(self) -> float | None:
        """Say when another place should be looked at."""
        return min(self._seek_at.values()) if self._seek_at else None

    def due(self, now: float) -> list[str]:
        """Hand out the runs for which others should be asked now."""
        found = [run for run, when in self._seek_at.items() if when <= now]
        for run in found:
            del self._seek_at[run]
        return found

    def plan(self, run: str, machine: RunMachine, now: float) -> None:
        """Make sure that others are asked in time, if there are any."""
        if machine.standing is None or machine.closed is not None or not self.targets(machine):
            self._seek_at.pop(run, None)
            return
        self._seek_at.setdefault(run, now + SEEK_S)

    def forget(self, run: str) -> None:
        """Stop asking for a run."""
        self._seek_at.pop(run, None)
        self._asked.pop(run, None)
        self.pending.pop(run, None)

    def stray(self, run: str, address: str) -> None:
        """Name a place no more at which this process's agent found no coordinator."""
        if self.elsewhere.get(run) == address:
            self.elsewhere[run] = ""

    def look(self, run: str, machine: RunMachine) -> list[str]:
        """Return where another coordinator of a run is asked for now."""
        targets = self.targets(machine)
        self._asked[run] = dict.fromkeys(targets)
        return targets

    def look_also(self, run: str, machine: RunMachine, address: str) -> bool:
        """Return whether to ask at a place that another agent names: it is not here, and was not asked yet."""
        asked = self._asked.setdefault(run, {})
        if not address or address in asked or address in (self.address_of(machine), self._address):
            return False
        asked[address] = None
        return True

    def note_workers(self, guard: RunMachine | None) -> None:
        """Note that workers of a run's agents train in process; None if the run of their agents is not there."""
        if guard is not None and guard.standing is not None:
            guard.standing.in_process = True

    def targets(self, machine: RunMachine) -> list[str]:
        """Return where another coordinator of a run may be: at agents that are not here, or where all nodes begin."""
        standing = machine.standing
        if standing is None or not machine.nodes:
            return []
        if not self.home and standing.addresses.keys() <= machine.nodes.keys():
            return []  # all are here, as they almost always are
        own = self.address_of(machine)
        away = [where for name, where in standing.addresses.items() if name not in machine.nodes]
        home = [self.home] if self.home else []
        return [where for where in dict.fromkeys([*away, *home]) if where not in (own, self._address)]

    def address_of(self, machine: RunMachine) -> str:
        """Return where the nodes of a run reach this coordinator."""
        standing = machine.standing
        if standing is not None:
            for name, node in machine.nodes.items():
                if node.spec.hosts_coordinator and name in standing.addresses:
                    return standing.addresses[name]
        return self._address

    def claim(self, machine: RunMachine, now: float) -> Claim:
        """Say how good this coordinator's claim to a run is."""
        assert machine.standing is not None
        return machine.standing.claim(machine.nodes, now)

    def heir(self, machine: RunMachine) -> str | None:
        """Return where the run's coordinator should be carried when this one leaves; None if no other agent can."""
        standing = machine.standing
        if standing is None:
            return None
        for name, address in standing.addresses.items():
            node = machine.nodes.get(name)
            if node is not None and not node.spec.hosts_coordinator:
                return address
        return None
