"""A few hundred seeds of everything that can go wrong; `make sim` runs ten thousand."""

import os
import subprocess
import sys

import pytest

from holdfast.coordinator.messages import RunSettings
from holdfast.sim.__main__ import main
from holdfast.sim.batch import run_seeds
from holdfast.sim.scenario import FaultKind, NodePlan, Scenario, Weather, make_scenario, make_training
from holdfast.sim.shrink import Keep, apply, keep_all
from holdfast.sim.simulation import Simulation


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_nothing_is_wrong_and_everything_comes_to_rest_with_few_nodes(start: int) -> None:
    summary = run_seeds(range(start, start + 40), 5, 12, jobs=1)

    assert summary.failures == []
    assert summary.rounds > 40


@pytest.mark.parametrize("start", range(1000, 1100, 20))
def test_nothing_is_wrong_and_everything_comes_to_rest_with_many_nodes(start: int) -> None:
    summary = run_seeds(range(start, start + 20), 5, 64, jobs=1)

    assert summary.failures == []


def test_a_node_that_is_lost_after_its_work_makes_no_victim() -> None:
    # A node finishes and crashes; a failure elsewhere that says it is a victim's has no other cause, and is charged.
    outcome = Simulation(make_scenario(394, 3, 24)).run()

    assert outcome.check is None, outcome.sentence


def test_the_answer_to_an_ask_that_was_given_up_starts_no_workers() -> None:
    # The answer lies in the agent's inbox while a worker fails for good and the agent asks anew.
    outcome = Simulation(make_scenario(917, 3, 24)).run()

    assert outcome.check is None, outcome.sentence


def test_a_coordinator_that_dies_as_it_closes_a_run_knows_why_when_it_is_back() -> None:
    # A crash loop ends the run; the coordinator has written that down, and dies before it has told a node.
    outcome = Simulation(make_scenario(910309)).run()

    assert outcome.check is None, outcome.sentence


def test_nodes_of_a_host_stand_together_though_some_were_given_up_before_a_restart() -> None:
    # A coordinator without its disk gives three members up; they are back when it dies again, with its disk.
    outcome = Simulation(make_scenario(6675)).run()

    assert outcome.check is None, outcome.sentence


def test_every_kind_of_fault_is_drawn() -> None:
    makers = (make_scenario, make_training)
    drawn = {fault.kind for make in makers for seed in range(60) for fault in make(seed).faults}

    assert drawn == set(FaultKind)


def test_one_seed_has_one_story_whatever_the_hash_seed() -> None:
    stories = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.sim", "--seed", "17", "--transcript"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]

    assert stories[0] == stories[1]
    assert "sealed" in stories[0]


def test_gathering_costs_one_message_up_and_one_down_per_node() -> None:
    size = 64
    scenario = Scenario(
        seed=1,
        settings=RunSettings(min_nodes=size, max_nodes=size),
        weather=Weather(),
        nodes=tuple(NodePlan(f"n{index}", f"h{index}") for index in range(size)),
        start_s=0.0,
    )
    simulation = Simulation(scenario)
    for plan in scenario.nodes:
        simulation.arrive(plan.name)

    simulation.world.run(0.1)

    assert all(node.workers is not None for node in simulation.nodes.values())
    assert simulation.network.messages == 2 * size


def test_a_node_that_is_cut_off_goes_on_working() -> None:
    scenario = Scenario(
        seed=1,
        settings=RunSettings(min_nodes=1, max_nodes=2),
        weather=Weather(),
        nodes=(NodePlan("a", "ha"), NodePlan("b", "hb")),
        lease_s=1.0,
        start_s=0.0,
    )
    simulation = Simulation(scenario)
    for name in ("a", "b"):
        simulation.arrive(name)
    simulation.world.run(1.0)
    simulation.network.cut("b", up=True, down=True)
    simulation.world.run(10.0)

    cut_off, reachable = simulation.nodes["b"], simulation.nodes["a"]
    assert cut_off.workers is not None
    assert cut_off.workers.number == 1
    assert reachable.workers is not None
    assert reachable.workers.number == 2


def test_no_agent_waits_for_a_coordinator_that_never_comes_back() -> None:
    """Workers go on; an agent that asks gives up with a reason, and one whose work is done ends with success."""
    scenario = Scenario(
        seed=1,
        settings=RunSettings(min_nodes=2, max_nodes=2),
        weather=Weather(),
        nodes=tuple(NodePlan(name, f"h{name}") for name in "abc"),
        lease_s=1.0,
        start_s=0.0,
        stop_s=0.0,
        ask_timeout_s=60.0,
    )
    simulation = Simulation(scenario)
    for name in "abc":
        simulation.arrive(name)
        simulation.world.run(simulation.world.now + 0.5)
    works, done, asks = (simulation.nodes[name] for name in "abc")
    simulation.coordinator.die(disk_lost=True)
    done.finish()
    simulation.world.run(10_000.0)

    assert works.workers is not None
    assert not works.ended
    assert done.ended
    assert done.outcome is not None
    assert done.outcome.succeeded
    assert asks.ended
    assert asks.outcome is not None
    assert asks.outcome.unanswered is not None
    assert "out of reach" in asks.outcome.reason


def test_workers_that_train_in_process_outlive_their_round() -> None:
    scenario = Scenario(
        seed=1,
        settings=RunSettings(min_nodes=1, max_nodes=2, max_restarts=3),
        weather=Weather(),
        nodes=(NodePlan("a", "ha"), NodePlan("b", "hb")),
        lease_s=1.0,
        start_s=0.0,
        stop_s=0.0,
        in_process=True,
    )
    simulation = Simulation(scenario, story=True)
    for name in ("a", "b"):
        simulation.arrive(name)
    simulation.world.run(1.0)
    simulation.nodes["a"].worker_fails("exit code 1", victim=False)
    simulation.nodes["b"].crash(silent=False)
    simulation.world.run(5.0)

    survivor = simulation.nodes["a"]
    assert survivor.workers is not None
    assert survivor.workers.number == 2
    assert simulation.story is not None
    told = "\n".join(simulation.story.lines)
    assert "replaces a worker; the others go on" in told
    assert "has stopped the workers" not in told


def test_a_scenario_is_cut_down_by_what_is_kept() -> None:
    scenario = make_scenario(3, 5, 9)
    keep = keep_all(scenario)

    assert apply(scenario, keep) == scenario
    small = apply(scenario, Keep((0,), keep.nodes[:2], 1, 2, ("loss", "drift")))
    assert len(small.nodes) == 2
    assert len(small.faults) <= 1
    assert small.weather.loss == 0
    assert {node.clock_rate for node in small.nodes} == {1.0}


def test_the_command_line_replays_a_shrunk_seed(capsys: pytest.CaptureFixture[str]) -> None:
    keep = Keep((0, 1), ("n0", "n1"), 1, 2, ("loss",))

    status = main(["--seed", "3", "--nodes", "5:9", "--transcript", *keep.flags().split()])

    assert status == 0
    assert "run of 1:2 nodes" in capsys.readouterr().out


def test_a_failure_that_the_agent_learns_of_in_the_next_round_is_charged_to_that_one() -> None:
    outcome = Simulation(make_scenario(3002, 5, 64)).run()

    assert outcome.check is None, outcome.sentence


def test_the_command_line_sums_up_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--seeds", "3", "--first", "5", "--nodes", "5:6", "--jobs", "1"])

    assert status == 0
    out, err = capsys.readouterr()
    assert out.startswith("seeds 5 to 7: 3 seeds, 0 failed; ")
    assert err.startswith("nodes: seeds 5 to 7 on 1 process\n")
