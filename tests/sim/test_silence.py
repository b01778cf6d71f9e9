"""Silence in simulation: whose fault it is, and that a round outlives what is not the fault of its nodes."""

from __future__ import annotations

import pytest

from holdfast.coordinator.hearing import Hearing
from holdfast.coordinator.messages import RunSettings
from holdfast.sim.scenario import NodePlan, Scenario, Weather
from holdfast.sim.simulation import Simulation

LEASE_S = 5.0
NAMES = ("a", "b", "c")


def started(weather: Weather | None = None, *, seed: int = 1, timers_first: bool = False) -> Simulation:
    """A run of three nodes in its first round."""
    scenario = Scenario(
        seed=seed,
        settings=RunSettings(min_nodes=1, max_nodes=3, max_restarts=3),
        weather=weather or Weather(),
        nodes=tuple(NodePlan(name, f"h{name}", timers_first=timers_first) for name in NAMES),
        lease_s=LEASE_S,
        start_s=0.0,
        stop_s=0.0,
        timers_first=timers_first,
    )
    simulation = Simulation(scenario, story=True)
    for name in NAMES:
        simulation.arrive(name)
    simulation.world.run(2.0 + seed / 7)
    assert rounds(simulation) == [1, 1, 1]
    return simulation


def rounds(simulation: Simulation) -> list[int | None]:
    """The number of the round whose workers run on each node."""
    found = (simulation.nodes[name].workers for name in NAMES)
    return [None if workers is None else workers.number for workers in found]


def cut(simulation: Simulation, names: tuple[str, ...], seconds: float) -> None:
    for name in names:
        simulation.network.cut(name, up=True, down=True)
    simulation.world.run(simulation.world.now + seconds)
    for name in names:
        simulation.network.mend(name, up=True, down=True)


def rest(simulation: Simulation, seconds: float = 20.0) -> None:
    simulation.world.run(simulation.world.now + seconds)


@pytest.mark.parametrize("seconds", [4.0, 5.5, 8.0, 20.0, 100.0])
@pytest.mark.parametrize("holds", [False, True])
def test_a_coordinator_that_was_cut_off_from_all_breaks_nothing_when_it_is_back(seconds: float, holds: bool) -> None:
    simulation = started(Weather(holds=holds))

    cut(simulation, NAMES, seconds)
    rest(simulation)

    assert rounds(simulation) == [1, 1, 1], "\n".join(simulation.story.lines if simulation.story else [])


def test_without_an_excuse_the_same_cut_breaks_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hearing, "excuse", lambda *_: None)
    simulation = started()

    cut(simulation, NAMES, 20.0)
    rest(simulation)

    assert rounds(simulation) != [1, 1, 1]


def test_a_node_that_died_while_the_coordinator_was_cut_off_is_put_out_afterwards() -> None:
    simulation = started()
    for name in NAMES:
        simulation.network.cut(name, up=True, down=True)
    rest(simulation, 10.0)
    simulation.nodes["c"].crash(silent=True)
    rest(simulation, 10.0)
    for name in NAMES:
        simulation.network.mend(name, up=True, down=True)
    rest(simulation)

    assert rounds(simulation)[:2] == [2, 2]


def test_a_node_that_is_cut_off_alone_is_put_out() -> None:
    simulation = started()

    cut(simulation, ("b",), 2 * LEASE_S)

    assert (rounds(simulation)[0], rounds(simulation)[2]) == (2, 2)


@pytest.mark.parametrize("timers_first", [False, True])
@pytest.mark.parametrize("seconds", [3.6, 3.8, 4.0, 4.3, 4.8, 5.0, 5.3, 6.0, 30.0])
def test_a_coordinator_that_was_stopped_breaks_nothing_when_it_goes_on(seconds: float, timers_first: bool) -> None:
    for seed in (1, 4, 6):
        simulation = started(seed=seed, timers_first=timers_first)

        simulation.coordinator.pause()
        rest(simulation, seconds)
        simulation.coordinator.resume()
        rest(simulation)

        assert rounds(simulation) == [1, 1, 1], (seed, simulation.story.lines if simulation.story else [])


def test_a_node_that_was_stopped_for_less_than_its_lease_keeps_its_connection() -> None:
    for seed in (1, 4, 6):
        simulation = started(seed=seed, timers_first=True)
        node = simulation.nodes["a"]
        link = node.link

        node.pause()
        rest(simulation, 3.4)
        node.resume()
        rest(simulation)

        assert rounds(simulation) == [1, 1, 1]
        assert node.link is link


@pytest.mark.parametrize("holds", [False, True])
def test_ten_flaps_of_two_seconds_cost_no_round(holds: bool) -> None:
    for seed in (1, 4, 6):
        # What TCP sends again arrives up to a second and a half after the link is back.
        weather = Weather(holds=holds, straggle=0.3, straggle_s=1.4)
        simulation = started(weather, seed=seed)

        for _ in range(10):
            cut(simulation, ("b",), 2.0)
            rest(simulation, 3.0)

        assert rounds(simulation) == [1, 1, 1], (seed, simulation.story.lines if simulation.story else [])


def keep_stepping(simulation: Simulation, names: tuple[str, ...]) -> None:
    """Let the workers of these nodes make a step every second, from now on."""
    for name in names:
        simulation.nodes[name].machine.steps += 1
    simulation.world.after(1.0, keep_stepping, simulation, names)


def test_a_node_whose_beats_are_late_stays_while_the_others_make_steps() -> None:
    simulation = started()
    keep_stepping(simulation, NAMES)
    rest(simulation, 5.0)

    cut(simulation, ("b",), 4 * LEASE_S)
    rest(simulation)

    assert rounds(simulation) == [1, 1, 1]
    assert simulation.story is not None
    late = [line for line in simulation.story.lines if "hb has been silent for 5 s, but the others still" in line]
    assert len(late) == 1


def test_a_node_that_is_gone_is_put_out_although_the_others_made_steps_until_then() -> None:
    simulation = started()
    keep_stepping(simulation, ("b",))
    simulation.nodes["a"].machine.steps = simulation.nodes["c"].machine.steps = 7
    rest(simulation, 5.0)

    simulation.nodes["b"].crash(silent=True)
    simulation.nodes["a"].machine.steps = 8  # the step that it was in when the other died
    rest(simulation, LEASE_S + 1.0)

    assert (rounds(simulation)[0], rounds(simulation)[2]) == (2, 2)


def test_a_node_that_stays_silent_is_put_out_in_the_end_whatever_the_others_do() -> None:
    simulation = started()
    keep_stepping(simulation, ("a", "c"))
    rest(simulation, 5.0)

    simulation.nodes["b"].crash(silent=True)
    rest(simulation, 3 * LEASE_S)
    assert rounds(simulation)[0] == 1
    rest(simulation, 4 * LEASE_S)

    assert (rounds(simulation)[0], rounds(simulation)[2]) == (2, 2)
