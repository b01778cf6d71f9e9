"""What must hold after every event, whatever goes wrong.

The checks trust nothing that the coordinator thinks of itself where the simulation knows the truth: ranks are counted
again from the nodes' own plans, running workers are those of the simulated agents, failures those that really happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.coordinator.messages import Cause, Place, RoundId, Sealed, ToldFact
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import Gone
from holdfast.facts import Fact
from holdfast.sim.scenario import NodePlan
from holdfast.sim.violation import Violation

if TYPE_CHECKING:
    from holdfast.sim.members import MemberProcess

#: Up to so many nodes the machines' own checks run after every event; with more, after every so many events.
_SMALL = 8
_EVERY = 61


class Safety:
    """Watches one simulation and raises `Violation` at the first thing that is wrong."""

    def __init__(self, nodes: Mapping[str, MemberProcess], size: int) -> None:
        #: Every life of every node, by its id.
        self._nodes = nodes
        self._every = 1 if size <= _SMALL else _EVERY
        self._looks = 0
        self.rounds: dict[RoundId, dict[str, Place]] = {}
        #: Round ids by number, while the coordinator has not lost its memory.
        self._numbers: dict[int, RoundId] = {}
        self._last: RoundId | None = None
        self._restarts_used = 0
        self._closed: str | None = None
        self._failures: dict[RoundId, list[Cause]] = {}
        self._charged_in: dict[RoundId, int] = {}
        #: Failures that their round outlived; each is charged by itself.
        self._outlived: dict[RoundId, int] = {}
        #: The run's round before the present event: the one that a charge is for.
        self._before: RoundId | None = None
        self._memory_lost = False
        #: Every fact of the run's history, and the last that each life of a node has heard.
        self._facts: set[tuple[int, str]] = set()
        self._last_heard: dict[str, int] = {}

    def forget(self) -> None:
        """The coordinator loses its memory: what depended on that cannot be asked of it any more."""
        self._memory_lost = True
        self._numbers.clear()
        self._last = None
        self._restarts_used = 0
        self._closed = None
        self._before = None

    def restarted(self) -> None:
        """The coordinator is another process now; what its earlier life was about to charge is not known."""
        self._before = None

    # -- what the coordinator does ---------------------------------------------------------------------------

    def sealed(self, run: RunMachine, node: MemberProcess, message: Sealed) -> None:
        """Look at a place as it is sent to its node; the first of a round brings the whole round."""
        place = message.place
        round_ = run.round
        if place.round not in self.rounds:
            if round_ is None or round_.id != place.round:
                raise Violation("only the present round is told", f"{node.id} was sent round {place.round}")
            self._on_new_round(run, place.round, dict(round_.places))
        known = self.rounds[place.round].get(node.id)
        if known is None:
            raise Violation("one membership per round", f"{node.id} was sent a place in {place.round}; it has none")
        if known != place:
            raise Violation("one membership per round", f"{node.id} was sent {place}, before it was {known}")

    def rejected(self, run: RunMachine, node: MemberProcess) -> None:
        """Look at a node that is refused."""
        place, round_ = node.machine.place, run.round
        if place is not None and round_ is not None and round_.id == place.round and round_.broken is None:
            raise Violation("a member is not turned away", f"{node.id} is in round {place.round}, which goes on")

    def _on_new_round(self, run: RunMachine, round_id: RoundId, places: dict[str, Place]) -> None:
        if self._closed is not None:
            raise Violation("closed is final", f"round {round_id} was sealed after: {self._closed}")
        other = self._numbers.setdefault(round_id.number, round_id)
        if other != round_id:
            raise Violation("a round number is used once", f"{round_id} and {other}")
        last = self._last
        if last is not None and round_id.number <= last.number:
            raise Violation("round numbers grow", f"{round_id} after {last}")
        settings = run.settings
        if settings is None or not settings.min_nodes <= len(places) <= settings.max_nodes:
            raise Violation("min and max are kept", f"round {round_id} has {len(places)} nodes, {settings}")
        self._check_no_old_workers(run, round_id)
        order = list(places)
        check_places([self._nodes[name].plan for name in order], list(places.values()), order)
        # A round that was saved but not told, because the coordinator died over it, may lie between.
        follows = last is not None and round_id.number == last.number + 1
        self._check_order(self.rounds[last] if last is not None and follows else {}, order)
        self.rounds[round_id] = places
        self._last = round_id

    def _check_no_old_workers(self, run: RunMachine, round_id: RoundId) -> None:
        for name in run.nodes:
            workers, in_process = self._nodes[name].workers, self._nodes[name].in_process
            if workers is not None and not in_process:
                raise Violation(
                    "no old worker beside a new round",
                    f"round {round_id} was sealed while {name}, which is live, runs workers of round {workers}",
                )

    def _check_order(self, previous: dict[str, Place], order: list[str]) -> None:
        """Survivors keep their order, and nodes of one host stand together unless users asked for ranks."""
        now = [name for name in order if name in previous]
        before = [name for name in previous if name in dict.fromkeys(order)]
        if now != before:
            raise Violation("survivors keep their order", f"{before} became {now}")
        if all(node.plan.node_rank < 0 for node in self._nodes.values()):
            hosts = [self._nodes[name].plan.host for name in order]
            blocks = [host for index, host in enumerate(hosts) if index == 0 or hosts[index - 1] != host]
            if len(blocks) != len(dict.fromkeys(blocks)):
                raise Violation("nodes of one host stand together", f"{order} live on {hosts}")

    def is_due(self) -> bool:
        """Say whether the own check of a machine that has handled an event is to be asked for now."""
        self._looks += 1
        return self._looks % self._every == 0

    def look(self, run: RunMachine) -> None:
        """Look at the run after one event."""
        if run.restarts_used != self._restarts_used:
            self._check_budget(run)
        self._before = run.round.id if run.round is not None and run.recovery is None else None
        closed = run.closed.reason if run.closed is not None else None
        if closed != self._closed:
            if self._closed is not None:
                raise Violation("closed is final", f"'{self._closed}' became '{closed}'")
            self._check_close(run)
            self._closed = closed

    def _check_budget(self, run: RunMachine) -> None:
        used, before = run.restarts_used, self._restarts_used
        settings = run.settings
        renewed = settings is not None and settings.reset_restarts and settings.progress_s > 0
        if used < before and not renewed:
            raise Violation("the budget is kept", f"restarts used went from {before} to {used}")
        if settings is not None and used > settings.max_restarts:
            raise Violation("the budget is kept", f"{used} restarts of {settings.max_restarts} are used")
        self._restarts_used = used
        round_id = self._before
        if round_id is None or round_id not in self.rounds or self._memory_lost:
            return  # a coordinator without memory learns from any node that comes what was charged before
        charged = self._charged_in.get(round_id, 0) + (1 if renewed else used - before)
        self._charged_in[round_id] = charged
        if charged > 1 + self._outlived.get(round_id, 0):
            raise Violation("a round is charged once", f"round {round_id} was charged {charged} times")
        causes = self._failures.get(round_id, [])
        if not causes:
            raise Violation("only failures are charged", f"round {round_id} had none")
        lost = [name for name in self.rounds[round_id] if name not in run.nodes and self._had_work(name, round_id)]
        if lost and all(cause.victim for cause in causes):
            raise Violation("a lost node is not charged", f"round {round_id} lost {lost}; all failures were victims")

    def _had_work(self, name: str, round_id: RoundId) -> bool:
        """Whether a node left work undone: not where it ended of itself, or its workers had finished."""
        node = self._nodes[name]
        return not node.ended and node.finished != round_id

    def _check_close(self, run: RunMachine) -> None:
        settings = run.settings
        if run.closed is None or not run.closed.failed or settings is None:
            return
        cause = run.closed.cause
        if cause is not None and cause.ends_job:
            if not any(cause in causes for causes in self._failures.values()):
                raise Violation("a run fails for a failure", f"nothing ended the job: {run.closed}")
            return
        if run.closed.crash_loop:
            failed = sum(1 for causes in self._failures.values() if causes) + sum(self._outlived.values())
            if not 0 < settings.crash_loop <= failed:
                raise Violation("a crash loop is a loop", f"there were {failed} failures: {run.closed}")
        elif run.restarts_used < settings.max_restarts:
            raise Violation(
                "the budget is used before a run fails", f"{run.restarts_used} of {settings.max_restarts}: {run.closed}"
            )
        if self._before in self.rounds and not self._failures.get(self._before):
            raise Violation("a run fails for a failure", f"nothing failed in round {self._before}: {run.closed}")

    def noted(self, fact: Fact, connected: bool) -> None:
        """Look at a fact as it is published; `connected` when its node has joined on a connection that stands."""
        if not fact.sentence:
            raise Violation("every fact has a sentence", fact.kind)
        if fact.number is None:
            raise Violation("every fact of a run has its number", fact.sentence)
        self._facts.add((fact.number, fact.sentence))
        if fact.kind == "node_gone" and connected and fact.data["why"] == Gone.DROPPED:
            raise Violation("only dropped nodes are dropped", f"it is connected, but: {fact.sentence}")

    def heard(self, node: MemberProcess, fact: ToldFact) -> None:
        """Look at a fact as a node hears of it."""
        if (fact.number, fact.sentence) not in self._facts:
            raise Violation("nodes hear of what happened", f"{node.id} was told {fact}")
        if fact.number <= self._last_heard.get(node.id, 0):
            raise Violation("a fact is heard once and in order", f"{node.id} was told {fact}")
        self._last_heard[node.id] = fact.number

    # -- what nodes do ---------------------------------------------------------------------------------------

    def told(self, node: MemberProcess, place: Place) -> None:
        """Look at a place as its node takes it."""
        if self.rounds.get(place.round, {}).get(node.id) != place:
            raise Violation("agreement", f"{node.id} took {place}, which is not its place")
        if node.workers is not None and not node.in_process:
            raise Violation("one round at a time", f"{node.id} is told {place.round} while {node.workers} runs")
        if place.round in node.rounds_left:
            raise Violation("a round that was left is not entered again", f"{node.id} is told {place.round} again")

    def workers_start(self, node: MemberProcess, round_id: RoundId) -> None:
        """Look at a node that starts workers."""
        if node.workers is not None:
            raise Violation("one round at a time", f"{node.id} starts {round_id} while {node.workers} runs")
        last = self._last
        if last is not None and last.number > round_id.number and node.id in self.rounds[last]:
            raise Violation(
                "no old worker beside a new round",
                f"{node.id} is a member of round {last} but starts workers of round {round_id}",
            )

    def failed(self, round_id: RoundId, cause: Cause) -> None:
        """Remember a failure that really happened."""
        self._failures.setdefault(round_id, []).append(cause)

    def outlived(self, round_id: RoundId, cause: Cause) -> None:
        """Remember that a worker was replaced while this round went on."""
        self._failures.setdefault(round_id, []).append(cause)
        self._outlived[round_id] = self._outlived.get(round_id, 0) + 1

    def look_at_member(self, node: MemberProcess) -> None:
        """Look at a member after one event."""
        if self.is_due():
            node.machine.check()


def check_places(plans: list[NodePlan], places: list[Place], names: list[str]) -> None:
    """Count all ranks again from what every node brings."""
    world_size = sum(plan.workers for plan in plans)
    role_sizes: dict[str, int] = {}
    first_rank = 0
    for index, (plan, place) in enumerate(zip(plans, places, strict=True)):
        if (place.group_rank, place.group_world_size) != (index, len(plans)):
            raise Violation("group ranks are contiguous", f"{names[index]} has {place}")
        if (place.first_rank, place.world_size) != (first_rank, world_size):
            raise Violation("global ranks are contiguous", f"{names[index]} has {place}, expected {first_rank}")
        if place.first_role_rank != role_sizes.get(plan.role, 0):
            raise Violation("role ranks are contiguous", f"{names[index]} has {place}")
        if (place.master_addr, place.master_port) != (places[0].master_addr, places[0].master_port):
            raise Violation("all agree on the master", f"{names[index]} has {place}, the first {places[0]}")
        first_rank += plan.workers
        role_sizes[plan.role] = role_sizes.get(plan.role, 0) + plan.workers
    for name, plan, place in zip(names, plans, places, strict=True):
        if place.role_world_size != role_sizes[plan.role]:
            raise Violation("role world sizes agree", f"{name} has {place}, its role {role_sizes[plan.role]}")
