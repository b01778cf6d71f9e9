"""Stacks as data: equal ones stand together, and the odd one out is named."""

import json

import pytest

from holdfast.errors import PeerError
from holdfast.failures import Failure, Kind, Verdict, render
from holdfast.failures.stacks import FRAMES_MAX, GROUPS_MAX, Frame, Group, Stack, Thread, merge, name_ranks, odd_ones
from holdfast.failures.stacks import render as render_stacks


def at(*calls, pid=1, state="S", **more):
    """A process whose main thread is in these calls, each `function:line`, the innermost first."""
    frames = [Frame(name, "train.py", int(line)) for name, line in (call.split(":") for call in calls)]
    return Stack(pid, state, threads=(Thread("MainThread", tuple(frames), is_main=True),), **more)


def test_ranks_in_the_same_place_stand_together_and_the_rarest_comes_first():
    stacks = {rank: at("all_reduce:90", "main:14") for rank in range(7)} | {7: at("load:31", "main:12")}

    groups = merge(stacks)

    assert [group.ranks for group in groups] == [(7,), (0, 1, 2, 3, 4, 5, 6)]
    assert odd_ones(groups) == (7,)


def test_a_loop_is_one_place_whatever_line_it_is_caught_on():
    assert len(merge({0: at("spin:3", "main:9", state="R"), 1: at("spin:4", "main:9")})) == 1
    assert len(merge({0: at("spin:3", "main:9"), 1: at("spin:3", "main:10")})) == 2


def test_ranks_that_wait_on_different_lines_of_one_function_are_in_different_places():
    stacks = {0: at("main:5"), 1: at("main:3"), 2: at("main:5")}

    groups = merge(stacks)

    assert [(group.ranks, group.stack.main[0].line) for group in groups] == [((1,), 3), ((0, 2), 5)]
    assert odd_ones(groups) == (1,)


def test_threads_beside_the_main_one_do_not_set_ranks_apart():
    busy = Stack(1, "S", threads=(Thread("writer", (Frame("write", "log.py", 3),)), *at("step:1").threads))

    assert len(merge({0: busy, 1: at("step:1")})) == 1


def test_a_frozen_process_is_the_odd_one_even_of_two():
    assert odd_ones(merge({0: at("step:1", state="T"), 1: at("step:1")})) == (0,)


@pytest.mark.parametrize(
    "stacks",
    [{}, {0: at("a:1")}, {0: at("a:1"), 1: at("b:1")}, {0: at("a:1"), 1: at("a:1")}, {0: at("a:1", state="T")}],
)
def test_no_rank_is_odd_where_nothing_tells(stacks):
    assert odd_ones(merge(stacks)) == ()


def test_the_text_has_ranks_places_and_states():
    frozen = at("load:31", "main:12", state="T", wait="do_signal_stop")
    silent = Stack(3, "D", "nfs_wait", ("rpc_wait", "nfs_wait"), note="it cannot answer in this state")
    text = render_stacks(merge({0: at("wait:1"), 1: at("wait:1"), 2: frozen, 3: silent}))

    assert text.splitlines() == [
        "rank 2, stopped by a signal, in the kernel's do_signal_stop:",
        "    load (train.py:31)",
        "    main (train.py:12)",
        "rank 3, waiting in the kernel, uninterruptible, in the kernel's nfs_wait:",
        "    (it cannot answer in this state)",
        "    rpc_wait",
        "    nfs_wait",
        "ranks 0-1:",
        "    wait (train.py:1)",
    ]


def test_the_text_stays_short_and_keeps_the_most_common_place():
    stacks = {rank: at(f"f{rank}:1") for rank in range(30)} | {rank: at("wait:1") for rank in range(30, 99)}

    text = render_stacks(merge(stacks))

    assert "ranks 30-98:" in text
    assert f"and {31 - GROUPS_MAX} more ranks in {31 - GROUPS_MAX} other places" in text


@pytest.mark.parametrize(("ranks", "text"), [([3], "rank 3"), ([2, 0, 1, 7], "ranks 0-2, 7"), ([0, 1], "ranks 0-1")])
def test_ranks_are_named_shortly(ranks, text):
    assert name_ranks(ranks) == text


def test_a_group_survives_json_and_what_is_too_much_is_cut():
    group = merge({0: at("a:1", "b:2", state="T", wait="w", kernel=("k",), note="n")})[0]

    assert Group.from_json(json.loads(json.dumps(group.to_json()))) == group
    deep = at(*[f"f{depth}:1" for depth in range(1000)])
    assert len(Stack.from_json(deep.to_json()).main) == FRAMES_MAX


@pytest.mark.parametrize("data", [None, {}, {"ranks": [0], "stack": {"pid": "x"}}, {"ranks": 3, "stack": {}}])
def test_what_is_no_stack_is_refused(data):
    with pytest.raises(PeerError):
        Group.from_json(data)


def test_a_failures_stacks_survive_json_and_are_in_the_report():
    groups = merge({0: at("wait:1"), 1: at("deadlock:5")})
    failure = Failure(Kind.TIMEOUT, "timer 'x' of 5 s expired", rank=1, exit_code=-9, stacks=groups)

    verdict = Verdict.from_json(json.loads(json.dumps(Verdict(failure).to_json())))

    assert verdict.cause == failure
    assert "where each rank was" in render(verdict)
    assert "      deadlock (train.py:5)" in render(verdict)
