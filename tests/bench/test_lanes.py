"""The picture of a recovery says what the journals say."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from bench._lanes import EDGE_S, JOINS, draw, read_story

ZERO = 1000.0


def entry(at, kind, node=None, **data):
    return json.dumps({"time": ZERO + at, "kind": kind, "node": node, "data": data})


#: Node `b` starts first and is lost; `a` loses worker 1; `c` comes later.
DATA = {
    "faults": [
        {"what": "worker killed", "at": ZERO + 2.0, "pids": [11]},
        {"what": "node lost", "at": ZERO + 4.0, "pids": [77, 22, 23]},
        {"what": JOINS, "at": ZERO + 5.0, "pids": []},
    ],
    "journal": [
        entry(0.0, "round_sealed", round=1),
        entry(0.5, "workers_started", "b", round=1, pids=[12, 13]),
        entry(0.6, "workers_started", "a", round=1, pids=[10, 11]),
        entry(2.01, "worker_failed", "a", pid=11),
        entry(2.02, "round_broken", round=1),
        entry(2.04, "workers_stopped", "b"),
        entry(2.05, "workers_stopped", "a"),
        entry(2.06, "round_sealed", round=2),
        entry(2.10, "workers_started", "a", round=2, pids=[20, 21]),
        entry(2.11, "workers_started", "b", round=2, pids=[22, 23]),
        json.dumps({"time": ZERO + 4.05, "kind": "node_gone", "node": None, "data": {"node": "b"}}),
        entry(4.05, "round_broken", round=2),
        entry(4.08, "workers_stopped", "a"),
        entry(4.09, "round_sealed", round=3),
        entry(4.12, "workers_started", "a", round=3, pids=[30, 31]),
        entry(7.0, "round_broken", round=3),
        entry(7.02, "workers_stopped", "a"),
        entry(7.03, "round_sealed", round=4),
        entry(7.06, "workers_started", "c", round=4, pids=[42, 43]),
        entry(7.07, "workers_started", "a", round=4, pids=[40, 41]),
    ],
    "steps": {
        **{str(pid): [ZERO + 0.8, ZERO + 1.99] for pid in (10, 11, 12, 13)},
        **{str(pid): [ZERO + 2.2, ZERO + 3.99] for pid in (20, 21, 22, 23)},
        **{str(pid): [ZERO + 4.2, ZERO + 6.98] for pid in (30, 31)},
        **{str(pid): [ZERO + 7.2, ZERO + 9.0] for pid in (40, 41, 42, 43)},
    },
}
#: Where the picture begins.
BEGIN = 0.5 - EDGE_S


@pytest.fixture
def story():
    return read_story(DATA)


def test_a_stall_lasts_from_the_fault_to_the_first_step_of_the_last_rank(story):
    spans = {stall.what: (stall.start_s + BEGIN, stall.end_s + BEGIN) for stall in story.stalls}

    assert spans["worker killed"] == pytest.approx((2.0, 2.2))
    assert spans["node lost"] == pytest.approx((4.0, 4.2))


def test_a_newcomer_costs_the_others_only_the_pause_in_which_it_is_let_in(story):
    assert (story.stalls[2].start_s + BEGIN, story.stalls[2].end_s + BEGIN) == pytest.approx((6.98, 7.2))
    assert (story.arrival.start_s + BEGIN, story.arrival.end_s + BEGIN) == pytest.approx((5.0, 7.06))


def test_crosses_stand_on_the_workers_that_were_killed(story):
    assert [(node, worker) for node, worker, _ in story.kills] == [(0, 1), (1, 0), (1, 1)]


def test_a_worker_ends_when_its_agent_saw_it_end_and_else_with_its_last_step(story):
    ends = {(bar.node, bar.worker, bar.round): bar.end_s + BEGIN for bar in story.bars}

    assert ends[0, 1, 1] == pytest.approx(2.01)
    assert ends[0, 0, 1] == pytest.approx(2.05)
    assert ends[1, 0, 2] == pytest.approx(3.99)
    assert ends[2, 0, 4] == pytest.approx(9.0)


def test_the_phases_of_the_first_fault_follow_each_other_and_add_up(story):
    first, *_, last = story.phases

    assert (first.start_s, last.end_s) == (story.stalls[0].start_s, story.stalls[0].end_s)
    assert [round(1000 * (span.end_s - span.start_s)) for span in story.phases] == [10, 10, 30, 10, 50, 90]


def test_the_picture_has_a_lane_for_every_node_and_a_number_for_every_round(story):
    picture = ElementTree.fromstring(draw(story))
    words = ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]

    assert {"node A", "node B", "node C", "1", "2", "3", "4", "worker killed", "0.20 s", "0.22 s"} <= set(words)
    assert draw(story) == draw(read_story(DATA))
