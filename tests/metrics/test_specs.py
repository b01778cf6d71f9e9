"""What `--metrics` says, as data."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.metrics.specs import Spec, join, parse, unknown_sink


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("console", [Spec(None, "console")]),
        ("jsonl:out/m.jsonl", [Spec(None, "jsonl", "out/m.jsonl")]),
        ("otlp:http://host:4318", [Spec(None, "otlp", "http://host:4318")]),
        ("statsd:localhost:8125", [Spec(None, "statsd", "localhost:8125")]),
        ("my_app=jsonl:m.jsonl", [Spec("my_app", "jsonl", "m.jsonl")]),
        ("jsonl:run=5/m.jsonl", [Spec(None, "jsonl", "run=5/m.jsonl")]),
        ("console,my_app=prometheus", [Spec(None, "console"), Spec("my_app", "prometheus")]),
        (" console , null ", [Spec(None, "console"), Spec(None, "null")]),
        ("jsonl:a,,b.jsonl", [Spec(None, "jsonl", "a,b.jsonl")]),
        ("console,console", [Spec(None, "console")]),
        ("", []),
    ],
)
def test_a_text_means_these_sinks(text: str, expected: list[Spec]) -> None:
    assert parse([text]) == expected


def test_the_flag_may_be_repeated() -> None:
    assert parse(["console", "a=null,b=null"]) == [Spec(None, "console"), Spec("a", "null"), Spec("b", "null")]


@pytest.mark.parametrize("text", ["=console", "my_app=", ":x", "my_app=:x"])
def test_what_names_no_sink_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UsageError, match="names no metrics sink: write SINK, SINK:ARGUMENT or GROUP=SINK:ARGUMENT"):
        parse([text])


def test_what_is_joined_is_read_back() -> None:
    specs = [Spec(None, "console"), Spec("g", "jsonl", "a,b,,c.jsonl"), Spec(None, "otlp", "http://h:1/x?a=b")]

    assert parse([join(specs)]) == specs


def test_an_unknown_sink_is_answered_with_those_there_are_and_the_closest() -> None:
    text = str(unknown_sink(Spec(None, "promethius"), ["null", "console", "prometheus"]))

    assert text == (
        "no metrics sink is called 'promethius'; there are console, null, prometheus; did you mean 'prometheus'?"
    )


def test_a_path_alone_is_answered_with_how_to_write_a_file() -> None:
    assert str(unknown_sink(Spec(None, "m.txt"), ["console"])).endswith("; for a file write jsonl:m.txt")
