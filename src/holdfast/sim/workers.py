"""A worker that trains in process: the real member, the real trainer, and a program that does one step after the other.

The driver here is that of production in virtual time: every effect of the trainer is carried out, its end comes back as
an event, and news from the coordinator ends what is under way at once and reaches the trainer before anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.coordinator.messages import NodeSpec, Place, RoundId
from holdfast.rendezvous import machine as member
from holdfast.sim.collectives import SimRound
from holdfast.sim.members import PORT_MIN, MemberProcess
from holdfast.sim.network import Network
from holdfast.sim.scenario import WORKERS_RUN, NodePlan, Scenario, TrainingPlan
from holdfast.sim.story import Story, describe_place
from holdfast.sim.training import Disk, Model, TrainingSafety
from holdfast.sim.violation import Violation
from holdfast.sim.world import World
from holdfast.train import events as t
from holdfast.train.machine import NEWS_WAIT_S, TrainerMachine

NEWS_LOOK_S = 0.05


class SimWorker(MemberProcess):
    """One life of one worker."""

    safety: TrainingSafety

    def __init__(
        self,
        world: World,
        name: str,
        plan: NodePlan,
        scenario: Scenario,
        network: Network,
        safety: TrainingSafety,
        story: Story | None,
        disk: Disk,
    ) -> None:
        assert scenario.training is not None
        super().__init__(world, plan, Random(f"worker {scenario.seed} {name}"), network, safety, story)
        self.training: TrainingPlan = scenario.training
        self.scenario, self.disk = scenario, disk
        spec = NodeSpec(node=name, host=plan.host, role=plan.role, local_world_size=1, port=0, lease_s=scenario.lease_s)
        self.join_as(name, WORKERS_RUN, spec, self.training.settings())
        self.trainer = TrainerMachine(keeps=self.training.save_every > 0)
        self.model = Model(self.training)
        #: The rounds in which this worker has begun to train.
        self.rounds_begun: dict[RoundId, None] = {}
        #: Whether the program has ended, and how; None while it runs.
        self.exit: str | None = None
        self.ended_well = False
        #: Whether it ended because the state of its training is lost.
        self.lost_training = False
        #: Whether it said so to its agent.
        self.ends_job = False
        #: Called when the process has ended by itself, so that its agent notices.
        self.on_exit: Callable[[SimWorker], None] | None = None
        self._place: Place | None = None
        self._round: SimRound | None = None
        self._inbox: list[t.TrainerEvent] = []
        #: What the collective under way is for; None if there is none.
        self._under_way: str | None = None
        self._deadline = 0
        #: Counts what the program does; what was planned for an earlier moment is void.
        self._doing = 0
        #: Whether the error that a step is about to end with is the program's own.
        self._own_error = False
        self._failures_left = 0
        #: Whether every collective of the step has done its work.
        self._settled = False
        self._notice = False

    @property
    def ended(self) -> bool:
        """Whether the program has ended by itself."""
        return self.exit is not None

    # -- what the member decides ---------------------------------------------------------------------------------------

    def told(self, effect: Any) -> None:
        """Hand what the member tells to the trainer."""
        match effect:
            case member.RoundSealed():
                self._on_sealed(effect.place)
            case member.RoundBroken():
                self._on_news(t.RoundBroken(effect.place.round.number, effect.reason))
            case member.RunEnded():
                self._on_ended(t.RunEnded(effect.reason, effect.failed))
            case member.AskFailed():
                self._after_member(t.AskFailed(effect.reason))
            case member.NewcomersWait():
                self._on_news(t.NewcomersWait(effect.nodes_waiting))

    def _on_sealed(self, place: Place) -> None:
        self.tell(f"is told: {describe_place(place)}")
        self.safety.told(self, place)
        self._place = place
        self.workers = place.round
        self._after_member(t.RoundSealed(place.round.number, place.group_rank, place.group_world_size))

    def _on_ended(self, closed: t.RunEnded) -> None:
        self.tell(f"is told: the run ended: {closed.reason}")
        if self._under_way == "ask":
            self._after_member(closed)
        else:
            self._on_news(closed)

    def _on_news(self, event: t.TrainerEvent) -> None:
        self._inbox.append(event)
        if not isinstance(event, t.NewcomersWait):
            self._break(event.reason)  # type: ignore[union-attr]

    def _after_member(self, event: t.TrainerEvent) -> None:
        """Let the trainer hear of what it asked the coordinator for."""
        self._under_way = None
        self._later(0.0, self.go, event)

    # -- the trainer ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the program."""
        self.go(t.StepAsked())

    def go(self, event: t.TrainerEvent) -> None:
        """Hand an event to the trainer, the news first, and carry out what it answers."""
        if self.ended or not self.alive:
            return
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for each in inbox:
                self._hand_over(each)
        self._hand_over(event)

    def _hand_over(self, event: t.TrainerEvent) -> None:
        effects = self.trainer.handle(event, self.local())
        self.trainer.check()
        for effect in effects:
            if self.alive and self.exit is None:
                self._do(effect)

    def _do(self, effect: t.TrainerEffect) -> None:
        match effect:  # what every step brings first
            case t.StepGiven():
                self._step()
            case t.MarkState():
                self.model.mark()
            case t.StepBegun():
                self._later(self.training.step_s, self._sum)
            case t.SettleSums():
                self._settle()
            case t.CountStep():
                self._count()
            case t.TellVote():
                self._collective("vote", effect.vote)
            case t.StepCounted() | t.StepUndone():
                self.go(t.StepAsked())
            case t.SaveIfDue():
                self._save(due=True)
            case t.TellStraggler():
                pass  # a fact for people
            case t.AskRound():
                self._ask(effect.reason)
            case t.OpenRound():
                self._round = self.safety.ring(self._place_now.round, self._place_now.group_world_size)
                self._collective("open", None)
            case t.CloseRound():
                self._close_round()
            case t.SyncState():
                self.go(t.SharingAsked())
            case t.FindSaved():
                self._later(self.training.disk_s, lambda: self.go(t.SavedFound(self.disk.newest())))
            case t.TellAccount():
                self._collective("accounts", effect.account)
            case t.RestoreSaved():
                self._later(self.training.disk_s, self._restore, effect.after)
            case t.MoveState():
                mine = self.model.copy() if self._rank == effect.source else None
                self._collective("move", (mine, effect))
            case t.StateShared():
                self.go(t.StateSynced())
            case t.RoundGone():
                self.go(t.RoundLost(effect.reason))
            case t.RollBack():
                whole = self.model.roll_back(can_undo=self.rng.random() < self.training.undo)
                self.tell(f"rolls step {self.model.step} back" + ("" if whole else ", and cannot"))
                self.go(t.StepRolledBack(whole))
            case t.AwaitNews():
                self._await_news(self.world.now + NEWS_WAIT_S, reachable=True)
            case t.SaveNow():
                self._save(due=False)
            case t.AwaitAll():
                self._collective("all left", None)
            case t.CloseRun():
                self.tell(f"closes the run: {effect.reason}")
                self.safety.closes(self, effect)
                self.closing = True
                self.handle(member.Close(effect.reason, effect.failed))
            case _:
                self._answer(effect)

    def _answer(self, answer: t.TrainerEffect) -> None:
        """Do what a program does with an answer that ends its loop."""
        match answer:
            case t.ErrorStands():
                self.safety.error_stands(self, own=self._own_error)
                self._exit("its step failed", well=False)
            case t.TrainingOver():
                self.go(t.LoopLeft("its training is done"))
            case t.TooLate():
                self._exit("it came too late", well=True)
            case t.TrainingFailed():
                self.lost_training = answer.reason == self.safety.failed_for
                self.ends_job = answer.ends_job
                self._exit(f"the training failed: {answer.reason}", well=False)
            case t.MustLeave():
                self.go(t.LoopLeft(answer.reason, failed=True))
            case t.Leave():
                self.handle(member.Leave(answer.reason))
            case t.Left():
                self._exit("it has left", well=not self._notice)
            case _:
                pass  # facts for people

    def _exit(self, reason: str, *, well: bool) -> None:
        self.tell(f"exits: {reason}")
        self._close_round()
        self.exit, self.ended_well = reason, well
        self.handle(member.Leave(reason))
        if self.on_exit is not None:
            self.on_exit(self)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _ask(self, reason: str) -> None:
        self.tell(f"asks for a round: {reason}")
        if self._place is not None:
            self.rounds_left[self._place.round] = None
        self._under_way = "ask"
        port = PORT_MIN + self.rng.randrange(10_000)
        self.handle(member.Ask(port, self.local() + self.scenario.ask_timeout_s))

    def _close_round(self) -> None:
        self._doing += 1
        self._under_way = None
        self.workers = None
        if self._round is not None:
            self._round.close(self._rank)
            self._round = None

    def _collective(self, kind: str, data: Any) -> None:
        round_ = self._round
        if round_ is None:
            raise Violation("collectives need a round", f"{self.id} does {kind}")
        self._under_way = kind
        self._deadline += 1
        limit_s = self.training.collective_timeout_s * (1 + 0.1 * self.rng.random())
        self.world.after(limit_s, self.post, self._time_out, self._deadline)
        if self.trainer.broken is not None or self._inbox_breaks():
            self._break("the round is over")
            return
        round_.come(self._rank, self, kind, data)

    def _inbox_breaks(self) -> bool:
        number = self._place_now.round.number
        return any(isinstance(each, t.RoundBroken) and each.number >= number for each in self._inbox)

    def _time_out(self, deadline: int) -> None:
        if deadline == self._deadline and self._under_way is not None and self._round is not None:
            self.collective_failed(self._round, "it took too long")

    def _break(self, reason: str) -> None:
        """End what is under way, as the driver's reflex on news does."""
        if self._round is not None and self._under_way not in (None, "ask"):
            self._round.give_up(self._rank)
            self._later(0.0, self._fail_collective, self._under_way, reason)
            self._under_way = None

    def collective_failed(self, round_: SimRound, reason: str) -> None:
        """A collective ended without a result."""
        if round_ is self._round and self._under_way not in (None, "ask"):
            kind, self._under_way = self._under_way, None
            round_.give_up(self._rank)
            self._fail_collective(kind, reason)

    def _fail_collective(self, kind: str, reason: str) -> None:
        self.tell(f"cannot {kind}: {reason}")
        if kind in ("sum", "settle"):
            # Inside a step the library's own error is raised, which does not say whose fault it is.
            blame = t.Blame.ROUND if self.training.library == "ring" else t.Blame.UNCLEAR
            self.go(t.StepFailed(blame, reason))
        elif kind == "all left":
            self.go(t.AllLeft())
        else:
            self.go(t.RoundLost(reason, touched=False))

    def collective_done(self, round_: SimRound, kind: str, brought: list[Any]) -> None:
        """A collective has its result."""
        if round_ is not self._round or self._under_way != kind:
            return
        self._under_way = None
        match kind:
            case "open":
                self.go(t.RoundOpened())
            case "accounts":
                self.go(t.AccountsHeard(tuple(brought)))
            case "move":
                self._take_state(brought)
            case "sum":
                self._optimize()
            case "settle":
                self._settled = True
                self.go(t.SumsSettled())
            case "vote":
                self.go(t.VotesHeard(tuple(brought)))
            case "all left":
                self.go(t.AllLeft())

    def _await_news(self, deadline: float, *, reachable: bool) -> None:
        """Look for what explains an error, as the driver does."""
        gone = self._round is not None and self._round.is_closed(self._rank)
        reachable = reachable and self._linked
        if gone or self._inbox_breaks() or self.world.now >= deadline:
            self.go(t.NewsAwaited(gone, reachable))
        else:
            self._later(NEWS_LOOK_S, lambda: self._await_news(deadline, reachable=reachable), exactly=True)

    def _take_state(self, brought: list[Any]) -> None:
        effect: t.MoveState = brought[self._rank][1]
        if self._rank in effect.to:
            self.model.take(brought[effect.source][0])
            self.tell(f"takes the state of step {self.model.step} from rank {effect.source}")
        self.go(t.StateMoved(self.model.step))

    def _restore(self, after: int | None) -> None:
        saved = self.disk.read()
        if saved is None or (after is not None and saved.step <= after):
            self.go(t.SavedUnreadable())
            return
        self.model.take(saved)
        self.tell(f"restores the checkpoint of step {self.model.step}")
        self.go(t.SavedRestored(self.model.step))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.safety.ready(self)
        if self.model.step >= self.training.steps:
            self.go(t.LoopLeft("its training is done"))
        else:
            self.go(t.StepEntered())

    def _sum(self) -> None:
        if self._failures_left:
            self._failures_left -= 1
            self._own_error = True
            self.tell("its program fails")
            self.go(t.StepFailed(self.rng.choice([t.Blame.OWN, t.Blame.UNCLEAR]), "a bug"))
        else:
            self._own_error = False
            self._collective("sum", self.model.step)

    def _optimize(self) -> None:
        self.model.optimize(self._place_now.group_world_size)
        self.go(t.StepDone(self.training.step_s, self.model.step >= self.training.steps))

    def _settle(self) -> None:
        if self.training.late_collective:
            self._collective("settle", None)
        else:
            self._settled = True
            self.go(t.SumsSettled())

    def _count(self) -> None:
        if not self._settled:
            raise Violation("a step counts once its sums have arrived", f"{self.id} counts step {self.model.step - 1}")
        self._settled = False
        self.model.commit()
        self.tell(f"has done step {self.model.step - 1}")
        self.safety.committed(self)
        if self._notice:
            self._inbox.append(t.LeaveNoticed("preempted"))

    def _save(self, *, due: bool) -> None:
        every = self.training.save_every
        if every and (not due or self.model.step % every == 0):
            self.disk.save(self.model.copy(), self.rng.random() * self.training.disk_s, self)

    # -- small things --------------------------------------------------------------------------------------------------

    @property
    def _place_now(self) -> Place:
        assert self._place is not None
        return self._place

    @property
    def _rank(self) -> int:
        return self._place_now.group_rank

    def _later(self, seconds: float, act: Callable[..., None], *args: Any, exactly: bool = False) -> None:
        self._doing += 1
        delay = seconds if exactly else self.rng.random() * seconds
        self.world.after(delay, self.post, self._if_still, self._doing, act, args)

    def _if_still(self, doing: int, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if doing == self._doing:
            act(*args)

    # -- what befalls it -----------------------------------------------------------------------------------------------

    def fail_next(self) -> None:
        """The program has a bug in its next step, which it may have again when it tries again."""
        self._failures_left = self.rng.choice([1, 5])

    def be_noticed(self) -> None:
        """The worker is told to be gone soon: it leaves after its step."""
        self._notice = True

    def cut_ring(self) -> None:
        """Let nothing through between this worker and the others of its round any more."""
        if self._round is not None:
            self._round.cut(self._rank)

    def crash(self, *, silent: bool) -> None:
        """The process dies; `silent` when the whole host is gone."""
        if not self.alive or self.ended:
            return
        self.tell("crashes" + (" without a sound" if silent else ""))
        self.kill()
        self.workers = None
        if self._round is not None:
            self._round.close(self._rank, silent=silent)
        if self._link is not None:
            self.network.lose_node(self._link, silent=silent)
