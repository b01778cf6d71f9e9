"""Elections through etcd in simulation: nothing is wrong under many seeds, and planted bugs are caught."""

from __future__ import annotations

import pytest

from holdfast.rendezvous import election as rules
from holdfast.rendezvous.election import ElectionMachine
from holdfast.rendezvous.election_events import KeyRead, NotWritten, Permit, Renewed, StepDown
from holdfast.sim import election
from holdfast.sim.__main__ import main
from holdfast.sim.batch import sum_up
from holdfast.sim.election import Election, simulate_election
from holdfast.sim.simulation import Outcome

SEEDS_MAX = 80


def test_no_two_carriers_seal_and_one_is_elected_again() -> None:
    summary = sum_up(range(60), simulate_election, jobs=1)

    assert summary.failures == []
    assert summary.rounds > 60 * 20
    assert set(summary.faults) == {
        "break",
        "crash",
        "cut etcd",
        "cut peers",
        "lose lease",
        "outage",
        "pause",
        "resign",
    }


def test_one_seed_has_one_story() -> None:
    stories = []
    for _ in range(2):
        simulation = Election(5, story=True)
        assert simulation.run().check is None
        assert simulation.story is not None
        stories.append(simulation.story.digest())

    assert stories[0] == stories[1]


class SealsAlthoughDeposed(ElectionMachine):
    """Takes a refused transaction for a permission, and goes on."""

    def _on_not_written(self) -> None:
        assert self._writing is not None
        run = self._writing[0]
        self._write = self._writing = None
        self._out.append(Permit(run))


class DoesNotReadItsRenewals(ElectionMachine):
    """Renews its lease without looking at the answer."""

    def _on_renewed(self, renewed: Renewed) -> None:
        self._trusted_until = self._renewed_at + election.TRUST_S


class ReusesTerms(ElectionMachine):
    """Stands for election in the term that was given last."""

    def _next_term(self, found: KeyRead) -> int:
        return max(found.term, 1)


class ForgetsToAsk(ElectionMachine):
    """Allows every seal while it believes that it is the carrier, without a transaction."""

    def _write_next(self, now: float) -> None:
        if self._permits:
            self._out += [Permit(run) for run in self._permits]
            self._permits.clear()
        else:
            super()._write_next(now)


class TakesFromAnybody(ElectionMachine):
    """Takes the key from a carrier that it has never reached."""

    def _on_key_read(self, read: KeyRead, now: float) -> None:
        self._reached = read.carrier.revision if read.carrier is not None else 0
        super()._on_key_read(read, now)


PLANTED: list[tuple[type[ElectionMachine], tuple[str, ...]]] = [
    (SealsAlthoughDeposed, ("never two carriers seal", "a round number is used once")),
    (DoesNotReadItsRenewals, ("a deposed carrier steps down", "one carrier at a time", "liveness")),
    (ReusesTerms, ("a term is given once",)),
    (ForgetsToAsk, ("never two carriers seal", "a round number is used once")),
    (TakesFromAnybody, ("one carrier at a time", "liveness")),
]


def first_failure() -> Outcome | None:
    outcomes = (simulate_election(seed) for seed in range(SEEDS_MAX))
    return next((outcome for outcome in outcomes if outcome.check is not None), None)


@pytest.mark.parametrize(("machine", "checks"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_of_the_election_is_caught(
    monkeypatch: pytest.MonkeyPatch, machine: type[ElectionMachine], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(election, "ElectionMachine", machine)

    outcome = first_failure()

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {machine.__doc__}"
    assert outcome.check in checks, outcome


def test_a_carrier_that_etcd_does_not_confirm_and_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TRUST_S", 1e6)

    outcome = first_failure()

    assert outcome is not None
    assert outcome.check in ("one carrier at a time", "a deposed carrier steps down")


def test_the_command_line_runs_and_replays_elections(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--election", "--seeds", "2", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("seeds 0 to 1: 2 seeds, 0 failed; ")
    assert main(["--election", "--seed", "1", "--transcript"]) == 0
    assert "carries in term 1" in capsys.readouterr().out

    monkeypatch.setattr(election, "ElectionMachine", ReusesTerms)
    assert main(["--election", "--seeds", "5", "--jobs", "1"]) == 1
    [replay] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("replay it: ")]
    assert main(replay.split("holdfast.sim ")[1].split()) == 1


def test_a_refusal_that_comes_after_the_office_is_ignored() -> None:
    machine = ElectionMachine("me")

    assert machine.handle(NotWritten(7), 0.0) == []
    assert not any(isinstance(effect, StepDown) for effect in machine.handle(Renewed(3, 0, None), 0.0))
