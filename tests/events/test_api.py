"""Events keep their form on the way to text and back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast.errors import UsageError
from holdfast.events import Event, EventHandler, EventSource, NodeState, NullEventHandler, RdzvEvent


def test_an_event_is_one_line_of_json_with_torchelastics_fields() -> None:
    event = Event("epoch.done", EventSource.WORKER, 12.5, {"epoch": 3, "loss": None, "note": "a\nb", "last": True})

    line = event.serialize()

    assert json.loads(line) == {
        "name": "epoch.done",
        "source": "WORKER",
        "timestamp": 12.5,
        "metadata": {"epoch": 3, "loss": None, "note": "a\nb", "last": True},
    }
    assert "\n" not in line
    assert str(event) == line


def test_what_was_serialized_can_be_read_back() -> None:
    event = Event("n", EventSource.AGENT, 1.25, {"a": "b"})

    assert Event.deserialize(event.serialize()) == event
    assert Event.deserialize(event) is event


def test_an_event_of_torchelastic_can_be_read() -> None:
    text = '{"name": "test_event", "source": "AGENT", "timestamp": 0, "metadata": {"key1": "value1", "key2": 2}}'

    assert Event.deserialize(text) == Event("test_event", EventSource.AGENT, 0, {"key1": "value1", "key2": 2})


def test_events_made_without_metadata_do_not_share_it() -> None:
    one, other = Event("n", EventSource.AGENT), Event("n", EventSource.AGENT)
    one.metadata["a"] = 1

    assert other.metadata == {}
    assert one.timestamp == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a serialized event"),
        ("[]", "not a JSON object"),
        ('{"name": "n"}', "has no source"),
        ('{"name": "n", "source": "NO_SINKS"}', "'NO_SINKS' must be one of AGENT, WORKER"),
    ],
)
def test_what_is_no_event_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Event.deserialize(text)


def test_a_rendezvous_event_goes_to_text_and_back() -> None:
    event = RdzvEvent("n", "run", "joined", "host", 7, NodeState.RUNNING, "host:1", rank=2, error_trace="t")

    assert json.loads(event.serialize())["node_state"] == "RUNNING"
    assert RdzvEvent.deserialize(str(event)) == event
    assert RdzvEvent.deserialize(event) is event
    assert event.as_event().metadata["message"] == "joined"


def test_a_handler_must_say_what_it_does_with_an_event() -> None:
    with pytest.raises(TypeError, match="record"):
        EventHandler()  # type: ignore[abstract]

    assert NullEventHandler().record(Event("n", EventSource.AGENT)) is None  # type: ignore[func-returns-value]


def test_importing_events_does_not_import_what_only_some_handlers_need() -> None:
    code = (
        "import sys, holdfast.events as e; e.record(e.Event('n', e.EventSource.AGENT))\n"
        "assert not {'opentelemetry', 'importlib.metadata', 'msgspec', 'psutil'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
