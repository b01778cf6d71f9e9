"""Every event handler does what the contract says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import plugins
from holdfast.events import Event, EventHandler
from holdfast.testing.event_contract import Case, event_cases
from tests.metrics.conftest import Receiver

HANDLERS = [each.name for each in plugins.find("holdfast.events")]


def create(name: str, argument: str) -> EventHandler:
    found = next(each for each in plugins.find("holdfast.events") if each.name == name)
    handler: EventHandler = found.load()(argument)
    return handler


@pytest.fixture(params=HANDLERS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Any, Any]]:
    """A handler of ours by its entry point, with the function that reads back what it has delivered."""
    match request.param:
        case "console":
            yield lambda: create("console", ""), lambda: _events(capsys.readouterr().err)
        case "jsonl":
            path = tmp_path / "events.jsonl"
            yield lambda: create("jsonl", str(path)), lambda: _events(path.read_text())
        case "otlp":
            pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry")
            receiver = Receiver()
            yield lambda: create("otlp", receiver.address), None
            receiver.close()
        case "null":
            yield lambda: create("null", ""), None
        case name:
            raise AssertionError(f"say here how events of the handler {name} are read back")


@pytest.mark.parametrize("case", event_cases(), ids=lambda case: case.__name__)
def test_contract(case: Case, bench: tuple[Any, Any]) -> None:
    make, received = bench

    case(make, received)


def _events(text: str) -> list[Event]:
    return [Event.deserialize(line) for line in text.split("\n") if line]
