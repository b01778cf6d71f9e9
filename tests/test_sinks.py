"""Sinks by name: what `--metrics` and `--event-log-handler` say, and how a mistake is answered."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.sinks import Choice, Kind, join, otlp_endpoint

METRICS = Kind("metrics sink", "holdfast.metrics", "emit", has_groups=True)
EVENTS = Kind("event handler", "holdfast.events", "record")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("console", [Choice("console")]),
        ("jsonl:out/m.jsonl", [Choice("jsonl", "out/m.jsonl")]),
        ("otlp:http://host:4318", [Choice("otlp", "http://host:4318")]),
        ("statsd:localhost:8125", [Choice("statsd", "localhost:8125")]),
        ("my_app=jsonl:m.jsonl", [Choice("jsonl", "m.jsonl", "my_app")]),
        ("jsonl:run=5/m.jsonl", [Choice("jsonl", "run=5/m.jsonl")]),
        ("console,my_app=prometheus", [Choice("console"), Choice("prometheus", group="my_app")]),
        (" console , null ", [Choice("console"), Choice("null")]),
        ("jsonl:a,,b.jsonl", [Choice("jsonl", "a,b.jsonl")]),
        ("console,console", [Choice("console")]),
        ("", []),
    ],
)
def test_a_text_means_these_sinks(text: str, expected: list[Choice]) -> None:
    assert METRICS.parse([text]) == expected


def test_the_flag_may_be_repeated() -> None:
    assert METRICS.parse(["console", "a=null,b=null"]) == [
        Choice("console"),
        Choice("null", group="a"),
        Choice("null", group="b"),
    ]


@pytest.mark.parametrize("text", ["=console", "my_app=", ":x", "my_app=:x"])
def test_what_names_no_sink_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UsageError, match="names no metrics sink: write NAME, NAME:ARGUMENT or GROUP=NAME:ARGUMENT"):
        METRICS.parse([text])


def test_what_is_joined_is_read_back() -> None:
    specs = [Choice("console"), Choice("jsonl", "a,b,,c.jsonl", "g"), Choice("otlp", "http://h:1/x?a=b")]

    assert METRICS.parse([join(specs)]) == specs


def test_where_there_are_no_groups_an_equals_sign_is_part_of_the_name() -> None:
    assert EVENTS.parse(["a=b:c=d"]) == [Choice("a=b", "c=d")]


def test_an_unknown_sink_is_answered_with_those_there_are_and_the_closest() -> None:
    with pytest.raises(UsageError) as caught:
        METRICS.find(Choice("promethius"))

    assert str(caught.value) == (
        "there is no metrics sink 'promethius'; did you mean prometheus? "
        "there are: console, jsonl, null, otlp, prometheus, statsd"
    )


@pytest.mark.parametrize("kind", [METRICS, EVENTS])
def test_a_path_alone_is_answered_with_how_to_write_a_file(kind: Kind) -> None:
    with pytest.raises(UsageError, match=r"'m\.txt'; for a file write jsonl:m\.txt; there are: console"):
        kind.find(Choice("m.txt"))


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("host:4318", "http://host:4318/v1/logs"),
        ("http://host:4318", "http://host:4318/v1/logs"),
        ("https://host/", "https://host/v1/logs"),
        ("https://host/otlp/v1/logs", "https://host/otlp/v1/logs"),
        ("", None),
    ],
)
def test_an_otlp_endpoint_gets_its_path_unless_it_has_one(endpoint: str, url: str | None) -> None:
    assert otlp_endpoint(endpoint, "/v1/logs") == url


@pytest.mark.parametrize("endpoint", ["grpc://host:4317", "http://", "http://host:nine"])
def test_a_wrong_otlp_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not an OTLP endpoint: write otlp:http://HOST:4318"):
        otlp_endpoint(endpoint, "/v1/logs")
