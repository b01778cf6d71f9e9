"""The native rendezvous between real processes that are killed, frozen and cut off."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.rendezvous.conftest import Node, Serve

StartNode = Callable[..., Node]


def gather(nodes: list[Node]) -> list[dict[str, object]]:
    for each in nodes:
        each.say("ask")
    return [each.wait("sealed") for each in nodes]


def start(node: StartNode, count: int, **config: object) -> list[Node]:
    """Start nodes whose first round waits for all of them, however slow the machine is."""
    if "nnodes" not in config:
        config = {"expected": count, "quiet": "10m", "last_call_timeout": "10m", **config}
    first = node(**config)
    return [first, *(node(first.endpoint, **config) for _ in range(count - 1))]


def test_nodes_agree_on_ranks_world_and_master(node: StartNode) -> None:
    places = gather(start(node, 3, nnodes="3", local_world_size=2))

    assert sorted(place["rank"] for place in places) == [0, 1, 2]  # type: ignore[type-var]
    assert sorted(place["first_rank"] for place in places) == [0, 2, 4]  # type: ignore[type-var]
    assert {place["world_size"] for place in places} == {6}
    assert len({str(place["master"]) for place in places}) == 1


def test_a_killed_node_is_noticed_without_waiting_for_its_lease(node: StartNode) -> None:
    host, victim, other = start(node, 3, lease=300)
    gather([host, victim, other])

    victim.kill()

    assert "was lost" in host.wait("broken")["reason"]
    assert "was lost" in other.wait("broken")["reason"]
    assert {place["size"] for place in gather([host, other])} == {2}


def test_a_frozen_node_is_noticed_when_its_lease_runs_out(node: StartNode) -> None:
    host, victim = start(node, 2, lease=2)
    gather([host, victim])

    victim.signal(signal.SIGSTOP)

    assert "silent for 2 s" in host.wait("broken")["reason"]
    assert gather([host])[0]["size"] == 1

    victim.signal(signal.SIGCONT)

    assert "went on without this node" in victim.wait("broken")["reason"]
    victim.say("ask")
    assert "joined" in host.wait("broken")["reason"]
    host.say("ask")
    assert victim.wait("sealed")["size"] == host.wait("sealed")["size"] == 2


def test_a_failure_is_pushed_to_everybody_with_its_reason(node: StartNode) -> None:
    first, second = start(node, 2, max_restarts=1)
    gather([first, second])

    second.say("give_up worker 3 exited with code 7")

    assert first.wait("broken")["reason"].endswith("worker 3 exited with code 7")
    assert [place["round"] for place in gather([first, second])] == [2, 2]


def test_the_restart_budget_is_the_jobs_and_its_end_is_told_to_all(node: StartNode) -> None:
    first, second = start(node, 2, nnodes="2", max_restarts=1)
    gather([first, second])
    for failing, other in ((first, second), (second, first)):
        failing.say("give_up boom").say("ask boom")
        other.wait("broken")
        other.say("ask")
        if failing is first:
            first.wait("sealed")
            second.wait("sealed")

    for each in (first, second):
        ended = each.wait("ended")
        assert ended["failed"]
        assert ended["reason"] == "boom; not restarting: the only restart is used"


def test_a_late_node_is_admitted_at_once_by_default(node: StartNode) -> None:
    first = node()
    gather([first])
    late = node(first.endpoint).say("ask")

    assert first.wait("broken")["reason"].endswith("joined")
    assert {place["size"] for place in gather([first])} | {late.wait("sealed")["size"]} == {2}


def test_a_late_node_may_have_to_wait_for_the_next_restart(node: StartNode) -> None:
    first = node(admit="restart", max_restarts=1)
    gather([first])
    late = node(first.endpoint, admit="restart", max_restarts=1).say("ask")

    assert first.wait("newcomers")["count"] == 1
    first.say("give_up boom").say("ask boom")
    assert first.wait("sealed")["size"] == late.wait("sealed")["size"] == 2


def test_a_spare_takes_the_place_of_a_lost_node_at_once(node: StartNode) -> None:
    first, second, spare = start(node, 3, nnodes="2")
    lost_rank = gather([first, second])[1]["rank"]
    spare.say("ask")
    second.kill()
    first.wait("broken")
    first.say("ask")

    assert spare.wait("sealed")["rank"] == lost_rank
    assert first.wait("sealed")["size"] == 2


def test_a_polite_leave_breaks_the_round_at_once(node: StartNode) -> None:
    first, second = start(node, 2, lease=300)
    gather([first, second])

    second.say("leave preempted").wait("left")

    assert first.wait("broken")["reason"].endswith("left: preempted")


def test_the_run_ends_when_all_have_finished_and_its_id_is_spent(node: StartNode, serve: Serve) -> None:
    first, second = node(serve.endpoint, nnodes="2"), node(serve.endpoint, nnodes="2")
    gather([first, second])
    first.say("finish")
    second.say("finish")

    assert first.wait("ended")["reason"] == "finished"
    assert second.wait("ended")["reason"] == "finished"
    assert node(serve.endpoint, nnodes="2").say("ask").wait("ended")["reason"] == "finished"


def test_a_node_with_other_numbers_is_turned_away_with_the_reason(node: StartNode) -> None:
    first = node(nnodes="1:4")
    gather([first])

    ended = node(first.endpoint, nnodes="1:8").say("ask").wait("ended")

    assert ended["rejected"]
    assert "asks for 1:8 nodes, but run 'run' was started with 1:4" in ended["reason"]


def test_an_ask_that_times_out_names_the_nodes_and_how_many_are_missing(node: StartNode) -> None:
    reason = node(nnodes="3", join_timeout="2s", lease="1s").say("ask").wait("ask_failed")["reason"]

    assert "1 of 3 nodes" in reason
    assert "waiting for 2 more" in reason


def test_a_killed_coordinator_that_comes_back_disturbs_no_node(node: StartNode, serve: Serve) -> None:
    nodes = [node(serve.endpoint, nnodes="2", max_restarts=1, lease="3s") for _ in range(2)]
    gather(nodes)

    serve.kill()
    serve.start()
    # The round is still the first one when a failure breaks it, and the numbers go on.
    nodes[0].say("give_up boom").say("ask boom")

    assert nodes[1].wait("broken")["round"] == 1
    nodes[1].say("ask")
    assert [each.wait("sealed")["round"] for each in nodes] == [2, 2]


def test_when_the_node_that_carries_the_coordinator_dies_another_on_its_host_takes_over(node: StartNode) -> None:
    host, *others = start(node, 3, lease=300)
    gather([host, *others])
    assert host.status()["host"]

    host.kill()

    for each in others:
        assert "did not come back after the coordinator restarted" in each.wait("broken")["reason"]
    assert {place["round"] for place in gather(others)} == {2}


def test_a_node_left_over_from_an_earlier_launch_ends_when_the_later_one_is_complete(node: StartNode) -> None:
    old_host = node(nnodes="2", max_restarts=3)
    left_over = node(old_host.endpoint, nnodes="2", max_restarts=3, is_host=False)
    gather([old_host, left_over])
    old_host.kill()

    new_host = node(old_host.endpoint, nnodes="2", max_restarts=3, is_host=True).say("ask")
    other = node(old_host.endpoint, nnodes="2", max_restarts=3, is_host=False).say("ask")

    ended = left_over.wait("ended")
    assert ended["rejected"]
    assert "left over from an earlier launch of run 'run'" in ended["reason"]
    assert [new_host.wait("sealed")["size"], other.wait("sealed")["size"]] == [2, 2]


def test_ipv6(node: StartNode) -> None:
    first = node("[::1]:0", nnodes="2")

    assert gather([first, node(first.endpoint, nnodes="2")])[0]["master"][0] == "::1"  # type: ignore[index]
