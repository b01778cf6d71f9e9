"""Handlers are chosen by flag, by environment, by plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import events
from holdfast.errors import PluginBrokenError, UsageError
from holdfast.events import Event, EventSource
from holdfast.events.recording import parse, spec_from
from holdfast.sinks import Choice

EVENT = Event("n", EventSource.AGENT, 1)
Install = Callable[[str, str], None]

PLUGIN = """
from holdfast.events import EventHandler

class Mine(EventHandler):
    def __init__(self, path):
        self.path = path
    def record(self, event):
        with open(self.path, "a") as file:
            file.write(event.name + " ")
    def close(self):
        with open(self.path, "a") as file:
            file.write("closed")

def create_handler(argument):
    return Mine(argument)

def create_nothing(argument):
    return None
"""


@pytest.mark.parametrize(
    ("spec", "choices"),
    [
        ("null", [Choice("null")]),
        ("console", [Choice("console")]),
        ("jsonl:/tmp/a:b", [Choice("jsonl", "/tmp/a:b")]),
        ("otlp:http://h:4318", [Choice("otlp", "http://h:4318")]),
        (" console , jsonl:x,console,", [Choice("console"), Choice("jsonl", "x")]),
        ("dynamic_rendezvous", [Choice("dynamic_rendezvous")]),
    ],
)
def test_a_spec_names_handlers_and_what_each_is_told(spec: str, choices: list[Choice]) -> None:
    assert parse(spec) == choices


@pytest.mark.parametrize("spec", ["", " ", ","])
def test_a_spec_must_name_something(spec: str) -> None:
    with pytest.raises(UsageError, match="write null for none"):
        parse(spec)


def test_an_unknown_name_is_answered_with_those_there_are_and_the_closest() -> None:
    with pytest.raises(
        UsageError, match=r"'jsnl'; did you mean jsonl\? there are: console, dynamic_rendezvous, jsonl,"
    ):
        parse("console,jsnl:x")


def test_the_flag_goes_before_the_environment() -> None:
    environ = {"HOLDFAST_EVENTS": "console"}

    assert spec_from("null", environ) == "null"
    assert spec_from(None, environ) == spec_from("", environ) == "console"
    assert spec_from(None, {}) == "null"


def test_a_mistake_is_named_by_where_it_was_made() -> None:
    with pytest.raises(UsageError, match="--event-log-handler: there is no event handler 'x'"):
        spec_from("x", {})
    with pytest.raises(UsageError, match=r"\$HOLDFAST_EVENTS: there is no event handler 'y'"):
        spec_from(None, {"HOLDFAST_EVENTS": "y"})


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("null:x", "takes nothing after its name"),
        ("console:x", "takes nothing after its name"),
        ("jsonl", "write jsonl:PATH"),
        ("jsonl:/proc/nothing/here", "cannot write /proc/nothing/here"),
        ("otlp:ftp://h", "write otlp:http://HOST:4318"),
        ("otlp:http://h:nine", "write otlp:http://HOST:4318"),
    ],
)
def test_a_handler_that_cannot_be_is_refused_when_it_is_opened(spec: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        events.record(EVENT, spec)


def test_a_plugin_is_chosen_by_its_name_and_closed_at_the_end(install: Install, tmp_path: Path) -> None:
    install("mine = sample_events:create_handler", PLUGIN)

    events.record(EVENT, f"mine:{tmp_path / 'got'}")
    events.close_all()

    assert (tmp_path / "got").read_text() == "n closed"


def test_a_broken_plugin_is_named_and_costs_only_itself(install: Install, tmp_path: Path) -> None:
    install("broken = sample_missing:create\nempty = sample_events:create_nothing", PLUGIN)

    with pytest.raises(PluginBrokenError, match="'broken' of sample-events"):
        events.record(EVENT, "broken")
    with pytest.raises(PluginBrokenError, match=r"'empty' of sample-events .* made a NoneType, which has no 'record'"):
        events.record(EVENT, "empty")

    events.record(EVENT, f"jsonl:{tmp_path / 'f'}")
    events.close_all()
    assert json.loads((tmp_path / "f").read_text())["name"] == "n"
