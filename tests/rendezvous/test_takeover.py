"""The coordinator moves between real processes: killed, drained, frozen, and cut off in network namespaces."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdfast.wire.ports import HeldPort
from tests.rendezvous.conftest import Node, Serve
from tests.rendezvous.test_native import gather, start
from tests.rendezvous.test_partition import Hosts, hosts

__all__ = ["hosts"]

#: Those that take longer.
long = pytest.mark.skipif("HOLDFAST_TEST_TAKEOVER" not in os.environ, reason="`make test-takeover` runs it")

StartNode = Callable[..., Node]
MOVES = {"recovery_timeout": "5s"}


def wait_size(nodes: list[Node], size: int) -> set[int]:
    """Wait until all of them are in one round of this size; returns its number."""
    numbers: set[int] = set()
    for each in nodes:
        while (event := each.wait("sealed"))["size"] != size:
            pass
        numbers.add(event["round"])
    return numbers


def test_another_agent_carries_the_coordinator_when_its_agent_is_killed(node: StartNode) -> None:
    nodes = start(node, 3, lease=60, **MOVES)
    gather(nodes)

    nodes[0].kill()
    for each in nodes[1:]:
        each.wait("broken")

    assert {place["size"] for place in gather(nodes[1:])} == {2}
    assert sum(bool(each.status()["host"]) for each in nodes[1:]) == 1


def test_the_last_of_two_goes_on_when_the_other_surely_died(node: StartNode) -> None:
    first, second = start(node, 2, lease=60, **MOVES)
    gather([first, second])

    first.kill()
    second.wait("broken")

    assert gather([second])[0]["size"] == 1


def test_every_agent_carries_it_in_turn(node: StartNode) -> None:
    nodes = start(node, 4, lease=60, **MOVES)
    gather(nodes)

    for alive in (3, 2, 1):
        carrier = next(each for each in nodes if each.status()["host"])
        carrier.kill()
        nodes.remove(carrier)
        for each in nodes:
            each.wait("broken")
        assert {place["size"] for place in gather(nodes)} == {alive}


def test_a_coordinator_whose_agent_leaves_is_handed_over(node: StartNode) -> None:
    nodes = start(node, 3, lease=60, **MOVES)
    gather(nodes)

    nodes[0].say("leave drained").wait("left")
    reasons = [each.wait("broken")["reason"] for each in nodes[1:]]

    assert all("left: drained" in reason for reason in reasons), reasons
    assert {place["size"] for place in gather(nodes[1:])} == {2}


def test_a_node_that_stands_by_finds_the_agent_that_takes_over(node: StartNode) -> None:
    """It was in no round, and so knows the others only by what it heard while it waited."""
    config = {"nnodes": "1:2", "expected": 2, "quiet": "10m", "last_call_timeout": "10m", "lease": 60, **MOVES}
    first, second = start(node, 2, **config)
    gather([first, second])
    spare = node(first.endpoint, **config).say("stay")
    while "no answer yet" in spare.status()["sentence"]:
        pass

    first.kill()
    second.wait("broken")
    second.say("stay")

    assert len(wait_size([second, spare], 2)) == 1


def test_agents_that_are_all_started_again_are_a_run_again(node: StartNode) -> None:
    """Each tells what the one before it knew, so they wait neither for the dead nor for a majority of them."""
    port = HeldPort()
    config = {"endpoint": f"localhost:{port.port}", "nnodes": "1:3", "expected": 2, "quiet": "10m", **MOVES}
    before = [node(**config) for _ in range(2)]
    gather(before)
    for each in before:
        each.kill()

    again = [node(**config) for _ in range(2)]

    assert {place["size"] for place in gather(again)} == {2}
    port.close()


@long
def test_a_newcomer_finds_the_run_where_the_first_coordinator_was(node: StartNode) -> None:
    nodes = start(node, 3, lease=60, **MOVES)
    gather(nodes)
    nodes[0].kill()
    for each in nodes[1:]:
        each.wait("broken")
        each.say("stay")
    wait_size(nodes[1:], 2)

    newcomer = node(nodes[0].endpoint, expected=1, **MOVES).say("stay")

    assert len(wait_size([*nodes[1:], newcomer], 3)) == 1


@long
def test_a_coordinator_that_was_frozen_follows_the_one_that_took_over(node: StartNode) -> None:
    nodes = start(node, 3, lease=1, **MOVES)
    for each in nodes:
        each.say("stay")
    wait_size(nodes, 3)

    nodes[0].signal(signal.SIGSTOP)
    wait_size(nodes[1:], 2)
    nodes[0].signal(signal.SIGCONT)

    assert len(wait_size(nodes, 3)) == 1
    assert not nodes[0].status()["host"]


@long
def test_no_agent_takes_over_from_a_coordinator_of_its_own_process(node: StartNode, serve: Serve) -> None:
    nodes = [node(serve.endpoint, nnodes="2", lease=1, **MOVES) for _ in range(2)]
    gather(nodes)

    serve.kill()
    for each in nodes:
        while "out of reach" not in each.status()["sentence"]:
            pass
    assert not any(each.status()["host"] for each in nodes)
    serve.start()

    for each in nodes:
        while "out of reach" in (status := each.status())["sentence"]:
            pass
        assert not status["host"]


@long
def test_a_majority_goes_on_without_the_coordinators_host_which_stops_and_returns(
    hosts: Hosts, node: StartNode, environ: dict[str, str]
) -> None:
    environ["HOLDFAST_SECRET"] = "the same everywhere"
    endpoint = f"{hosts.address(1)}:29400"

    def begin(host: int) -> Node:
        prefix = ("ip", "netns", "exec", hosts.netns(host))
        return node(endpoint, "1:3", prefix=prefix, lease="1s", expected=3, **{**MOVES, "quiet": "10m"}).say("stay")

    nodes = {host: begin(host) for host in (1, 2, 3)}
    wait_size(list(nodes.values()), 3)

    hosts.move([1], "b")
    wait_size([nodes[2], nodes[3]], 2)
    assert "silent" in nodes[1].wait("broken")["reason"]
    while "no majority" not in str((status := nodes[1].say("status").wait_any("status", "sealed")).get("sentence")):
        assert status["what"] == "status", f"sealed beside the others: {status}"
    hosts.move([1], "a")

    assert len(wait_size(list(nodes.values()), 3)) == 1


@long
def test_an_agent_that_is_started_again_while_cut_off_waits_for_the_run(
    hosts: Hosts, node: StartNode, environ: dict[str, str]
) -> None:
    environ["HOLDFAST_SECRET"] = "the same everywhere"
    endpoint = f"{hosts.address(1)}:29400"

    def begin(host: int, expected: int) -> Node:
        prefix = ("ip", "netns", "exec", hosts.netns(host))
        config = {**MOVES, "quiet": "10m", "last_call_timeout": "10m"}
        return node(endpoint, "1:3", prefix=prefix, lease="1s", expected=expected, **config)

    nodes = {host: begin(host, 3).say("stay") for host in (1, 2, 3)}
    wait_size(list(nodes.values()), 3)
    hosts.move([1], "b")
    wait_size([nodes[2], nodes[3]], 2)
    nodes[1].kill()

    nodes[1] = begin(1, 1).say("stay")
    while "no majority" not in str((status := nodes[1].say("status").wait_any("status", "sealed")).get("sentence")):
        assert status["what"] == "status", f"sealed beside the others: {status}"
    hosts.move([1], "a")

    assert len(wait_size(list(nodes.values()), 3)) == 1
