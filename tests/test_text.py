"""Text that is not valid UTF-8 goes through every encoder as escapes, and stops nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.messages import CODEC, Cause, Fail, RoundId
from holdfast.errors import UsageError
from holdfast.events import entry as entries
from holdfast.events import index
from holdfast.events.platform import RunContext
from holdfast.facts import ERROR, Fact, FactBook
from holdfast.failures import errorfile
from holdfast.failures.failure import Failure, Kind
from holdfast.failures.report import render
from holdfast.failures.verdict import root_cause
from holdfast.launcher.screen import Screen
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.chosen import QueueingMetricHandler
from holdfast.rendezvous import RendezvousParameters
from holdfast.store.memory import MemoryStore
from holdfast.text import check_text, clean, clean_data
from holdfast.wire.frames import HEADER_BYTES

#: Any code points at all, lone surrogates included.
anything = st.text(st.characters(exclude_categories=()), max_size=40)


def has_surrogates(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


@given(anything)
def test_clean_text_can_be_encoded_and_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean(text).encode().decode() == clean(text)
    if not has_surrogates(text):
        assert clean(text) == text


def test_data_is_cleaned_at_every_depth_and_may_contain_itself() -> None:
    loop: list[Any] = ["\udce9"]
    loop.append(loop)

    assert clean_data({"k\udc80": [("\ud800", 1, None, b"\xff")]}) == {"k\\udc80": [("\\ud800", 1, None, b"\xff")]}
    assert clean_data(loop)[0] == "\\udce9"


@given(anything, anything, st.dictionaries(anything, anything, max_size=3))
def test_a_failure_reaches_message_journal_and_screen_whatever_its_text_holds(
    message: str, traceback: str, extra: dict[str, str]
) -> None:
    failure = Failure(
        Kind.EXCEPTION,
        message,
        host=message,
        traceback=traceback,
        log_lines=(message,),
        error_file=message,
        extra=extra,
    )
    verdict = root_cause([failure])

    # Over the wire, also where the text came in by another way than a failure.
    for cause in (Cause(verdict.sentence, detail=failure.to_json()), Cause(message, detail={message: [traceback]})):
        sent = CODEC.decode(CODEC.encode(Fail(1, RoundId(1, "n"), cause))[HEADER_BYTES:])
        assert isinstance(sent, Fail)
        assert sent.cause.sentence == clean(cause.sentence)
    assert Failure.from_json(json.loads(json.dumps(failure.to_json()))) == failure

    # Into the journal and back.
    context = RunContext(run=message, host=message, node="n", pid=1)
    for data in (failure.to_json(), {message: traceback}):
        line = entries.encode(entries.entry_of(Fact("failed", message, data, ERROR, 1.0), context))
        read = entries.decode(line)
        assert read is not None
        assert read.sentence == clean(message)
        assert read.data == json.loads(json.dumps(clean_data(data)))

    # Onto a screen that knows only ASCII.
    raw = io.BytesIO()
    screen = Screen(out=io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    screen._print(render(verdict))
    screen._print(message)
    raw.getvalue().decode("ascii")


@given(anything, anything)
def test_facts_are_clean_for_every_listener(sentence: str, value: str) -> None:
    book, heard = FactBook(), list[Fact]()
    book.listen(heard.append)
    book.publish(Fact("something", sentence, {"value": [value]}))

    assert heard[0].sentence == clean(sentence)
    assert heard[0].data == {"value": [clean(value)]}


def test_an_error_file_keeps_the_text_readable(tmp_path: Path) -> None:
    path = str(tmp_path / "error.json")
    assert errorfile.record(ValueError("caf\udce9.txt"), path)
    written = errorfile.read(path)

    assert written is not None
    assert written.message == "ValueError: caf\\udce9.txt"
    # A worker of another launcher writes the surrogate itself.
    Path(path).write_text(json.dumps({"message": "caf\udce9.txt"}))
    other = errorfile.read(path)
    assert other is not None
    assert other.message == "caf\\udce9.txt"


def test_one_bad_metric_name_does_not_cost_the_batch() -> None:
    class Sink(MetricHandler):
        def __init__(self) -> None:
            self.taken: list[tuple[str, str]] = []

        def emit(self, metric_data: MetricData) -> None:
            self.taken.append((metric_data.group_name, metric_data.name))

    sink = Sink()
    handler = QueueingMetricHandler("sink", sink)
    handler.emit(MetricData(0.0, "g\udce9", "n\udce9", 1.0))
    handler.emit(MetricData(0.0, "g", "ñ", 1.0))
    handler.close()

    assert sink.taken == [("g\\udce9", "n\\udce9"), ("g", "ñ")]


def test_a_journal_in_a_folder_that_is_not_utf8_is_found_again(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    journal = tmp_path / "caf\udce9" / "journal.jsonl"
    index.note_journal("run", journal, "host", environ)

    assert [noted.path for noted in index.journals_of("run", environ)] == [str(journal)]


def test_the_store_refuses_keys_and_values_that_are_not_utf8() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError, match=r"the key 'k\\udce9' is not valid UTF-8"):
        store.set("k\udce9", b"v")
    with pytest.raises(UsageError, match="not valid UTF-8"):
        store.check(["ok", "k\udce9"])
    with pytest.raises(UsageError, match="must be valid UTF-8"):
        store.set("k", "v\udce9")
    store.set("größe", "ñ")
    assert store.get("größe") == "ñ".encode()


@pytest.mark.parametrize(
    "given", [("run\udce9", "localhost:0", None), ("run", "h\udce9:1", None), ("run", "", "a\udce9")]
)
def test_names_that_are_not_utf8_are_a_usage_error(given: tuple[str, str, str | None]) -> None:
    run, endpoint, address = given
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        RendezvousParameters("holdfast", endpoint, run, 1, 1, address)
    assert check_text("the role", "größe") == "größe"
