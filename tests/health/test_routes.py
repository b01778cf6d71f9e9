"""What each request is answered with, without a socket."""

from __future__ import annotations

import json

import pytest

from holdfast.health import routes
from holdfast.health.http import Reply, Request
from holdfast.health.liveness import Liveness, Part
from holdfast.health.protocol import Policy
from holdfast.health.routes import Question

ALL = frozenset(["status", "ready", "metrics"])
NOW = 1000.0
WELL = Liveness((Part("the agent's loop", NOW - 0.5), Part("the watchdog", NOW - 12)), 60)
ILL = Liveness((Part("the agent's loop", NOW - 0.5), Part("the watchdog", NOW - 75)), 60)


def answer(
    path: str, liveness: Liveness = WELL, asked: frozenset[str] = ALL, *, json: bool = False
) -> Reply | Question:
    return routes.answer(Request("GET", path, wants_json=json), liveness, Policy(asked), NOW)


def reply(path: str, liveness: Liveness = WELL, asked: frozenset[str] = ALL, *, json: bool = False) -> Reply:
    found = answer(path, liveness, asked, json=json)
    assert isinstance(found, Reply)
    return found


def test_health_is_told_at_once_with_how_long_ago_each_part_moved() -> None:
    found = reply("/healthz")

    assert found.status == 200
    assert found.body == b"the agent's loop moved 0.5 s ago; the watchdog moved 12 s ago\n"


def test_a_part_that_does_not_move_makes_it_503_and_is_named() -> None:
    found = reply("/healthz", ILL)

    assert found.status == 503
    assert found.body == b"the watchdog last moved 75 s ago, 60 s are allowed\n"


def test_a_stopped_process_is_named_as_the_reason() -> None:
    assert reply("/healthz", ILL._replace(stopped=True)).body.endswith(b"; the agent's process is stopped\n")


def test_a_part_that_cannot_be_asked_counts_as_not_moving() -> None:
    liveness = Liveness((Part("the agent's loop", NOW, "asking when the agent's loop last moved raised KeyError"),), 60)

    assert reply("/healthz", liveness).status == 503


def test_silence_of_exactly_the_timeout_is_still_allowed() -> None:
    assert reply("/healthz", Liveness((Part("it", NOW - 60),), 60)).status == 200


def test_json_is_given_to_clients_that_ask_for_it() -> None:
    found = reply("/healthz", ILL, json=True)

    assert found.content_type == "application/json"
    assert json.loads(found.body) == {"alive": False, "reason": "the watchdog last moved 75 s ago, 60 s are allowed"}


@pytest.mark.parametrize(("path", "kind"), [("/readyz", "ready"), ("/metrics", "metrics"), ("/status", "status")])
def test_what_only_the_agent_knows_is_asked_of_it(path: str, kind: str) -> None:
    assert answer(path) == Question(kind)


def test_without_a_way_to_tell_ready_means_alive() -> None:
    assert reply("/readyz", WELL, frozenset()).status == 200
    assert reply("/readyz", ILL, frozenset()).status == 503


def test_metrics_that_are_missing_say_why() -> None:
    found = routes.answer(Request("GET", "/metrics"), WELL, Policy(no_metrics="pip install it"), NOW)

    assert isinstance(found, Reply)
    assert found.status == 404
    assert b"pip install it" in found.body


NAMES = frozenset(["localhost", "node7", "node7.cluster"])


@pytest.mark.parametrize(
    "host", ["", "localhost", "localhost.", "node7", "node7.cluster", "127.0.0.1", "10.1.2.3", "[::1]", "[fe80::1]"]
)
def test_addresses_and_known_names_are_answered(host: str) -> None:
    found = routes.answer(Request("GET", "/healthz", host=host), WELL, Policy(names=NAMES), NOW)

    assert isinstance(found, Reply)
    assert found.status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "node7.evil.example", "cluster", "127.0.0.1.evil", "1.2.3", "999.1.1.1"],
)
@pytest.mark.parametrize("path", ["/", "/healthz", "/status", "/metrics", "/nothing"])
def test_other_names_are_refused_without_telling_anything(host: str, path: str) -> None:
    """A page whose name leads here must learn nothing, not even what this host is called."""
    found = routes.answer(Request("GET", path, host=host), WELL, Policy(ALL, NAMES), NOW)

    assert isinstance(found, Reply)
    assert found.status == 421
    assert host.encode() in found.body
    assert b"HOLDFAST_HEALTH_HOSTS" in found.body
    assert b"node7" not in found.body.replace(host.encode(), b"")


def test_every_name_is_answered_where_the_user_says_so() -> None:
    assert routes.is_known("evil.example", frozenset(["*"]))


def test_the_index_lists_every_endpoint() -> None:
    assert all(path.encode() in reply("/").body for path in routes.ENDPOINTS)
    assert set(json.loads(reply("/", json=True).body)) == set(routes.ENDPOINTS)


def test_an_unknown_path_is_told_what_there_is() -> None:
    found = reply("/nothing" * 100)

    assert found.status == 404
    assert b"/healthz" in found.body
    assert len(found.body) < 300


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_other_methods_are_told_which_are_answered(method: str) -> None:
    found = routes.answer(Request(method, "/healthz"), WELL, Policy(ALL), NOW)

    assert isinstance(found, Reply)
    assert (found.status, found.allow) == (405, "GET, HEAD")


def test_who_waits_for_a_round_is_not_ready_and_says_for_what() -> None:
    waiting = {"answer": "ready", "ok": False, "sentence": "2 of 4 nodes; last call in 3 s"}

    found = routes.agents_reply(Request("GET", "/readyz"), waiting, b"")

    assert (found.status, found.body) == (503, b"2 of 4 nodes; last call in 3 s\n")


def test_an_agent_that_does_not_answer_makes_it_503_with_what_is_known() -> None:
    found = routes.unanswered(Request("GET", "/status"), ILL, 2.0, NOW)

    assert found.status == 503
    assert json.loads(found.body) == {
        "alive": False,
        "health": "the watchdog last moved 75 s ago, 60 s are allowed",
        "error": "the agent did not answer within 2 s: the watchdog last moved 75 s ago, 60 s are allowed",
    }
