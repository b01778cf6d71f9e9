"""Events reach the destination that is named and the handler that is configured, and never disturb the caller."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from holdfast import events
from holdfast.errors import UsageError
from holdfast.events import Event, EventHandler, EventSource, NodeState, NullEventHandler, RdzvEvent
from holdfast.facts import Fact
from tests.events.conftest import Collecting

EVENT = Event("n", EventSource.AGENT, metadata={"a": 1})


def test_a_handler_is_called_from_one_thread_at_a_time() -> None:
    entered, leave, inside = threading.Event(), threading.Event(), []

    class Slow(EventHandler):
        def record(self, event: Event) -> None:
            inside.append(event.name)
            assert len(inside) == 1
            entered.set()
            assert leave.wait(240)
            inside.remove(event.name)

    events.configure(Slow())
    threads = [threading.Thread(target=events.record, args=(Event(name, EventSource.AGENT),)) for name in ("a", "b")]
    try:
        for thread in threads:
            thread.start()
        assert entered.wait(240)
        forked = os.fork()
        if not forked:  # the thread that holds the lock is gone here; a handler can be called all the same
            inside.clear()
            leave.set()
            events.record(Event("c", EventSource.AGENT))
            os._exit(0 if not inside else 1)
        assert os.waitpid(forked, 0)[1] == 0
        assert inside == ["a"]
        leave.set()
        for thread in threads:
            thread.join(240)
        assert inside == []
    finally:
        leave.set()
        events.configure(NullEventHandler())


# -- a launcher of one's own --------------------------------------------------------------------------------------


def test_the_documented_launcher_with_an_event_handler_of_its_own_is_told_what_its_agent_does(tmp_path: Path) -> None:
    """The snippet of the customization document; the `...` filled in, and what is imported by our name."""
    launcher = tmp_path / "my_launcher.py"
    launcher.write_text(
        textwrap.dedent(
            """
            import os
            import sys
            import holdfast.events as events
            from holdfast.agent import LocalElasticAgent, WorkerSpec
            from holdfast.events.platform import RunContext
            from holdfast.events.recording import EventFeed
            from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
            from holdfast.workers import DefaultLogsSpecs

            class MyEventHandler(events.EventHandler):
                def record(self, event: events.Event):
                    print("got", event.name, event.source, event.timestamp > 0, event.metadata["run_id"])

            def main():
                events.configure(MyEventHandler())

                handler = get_rendezvous_handler(RendezvousParameters("holdfast", "localhost:0", "job", 1, 1))
                spec = WorkerSpec(entrypoint=sys.executable, args=("-c", "pass"), rdzv_handler=handler, max_restarts=0)
                agent = LocalElasticAgent(spec, DefaultLogsSpecs(sys.argv[1]))
                with EventFeed("null", RunContext("job", "here", os.getpid())):
                    agent.run()

            if __name__ == "__main__":
                main()
            """
        )
    )

    done = subprocess.run(
        [sys.executable, str(launcher), str(tmp_path / "logs")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
    )

    assert done.returncode == 0, done.stderr
    assert "got holdfast.workers_started AGENT True job" in done.stdout.splitlines()


def test_a_configured_handler_gets_every_event_whatever_its_destination(collecting: Collecting) -> None:
    events.configure(collecting)

    events.record(EVENT)
    events.record(EVENT, "null")
    events.record(EVENT, destination="dynamic_rendezvous")

    assert [event.name for event in collecting.events] == ["n", "n", "n"]


def test_configuring_the_null_handler_ends_that(collecting: Collecting) -> None:
    events.configure(collecting)
    events.configure(NullEventHandler())

    events.record(EVENT)

    assert collecting.events == []


def test_what_is_no_handler_is_refused() -> None:
    with pytest.raises(UsageError, match="is not an EventHandler"):
        events.configure(print)  # type: ignore[arg-type]


def test_the_timestamp_is_filled_once_and_the_callers_event_is_left_alone(collecting: Collecting) -> None:
    events.configure(collecting)
    before = time.time()

    events.record(EVENT)
    events.record(Event("n", EventSource.AGENT, 17))

    assert before <= collecting.events[0].timestamp <= time.time()
    assert collecting.events[1].timestamp == 17
    assert EVENT.timestamp == 0


def test_a_handler_that_raises_is_reported_once_and_goes_on_being_called(heard: list[Fact]) -> None:
    class Raising(EventHandler):
        calls = 0

        def record(self, event: Event) -> None:
            self.calls += 1
            raise OSError("the bucket is gone")

    handler = Raising()
    events.configure(handler)

    for _ in range(3):
        events.record(EVENT)

    assert handler.calls == 3
    (fact,) = heard
    assert fact.sentence.startswith("the event handler Raising raised OSError('the bucket is gone')")


# -- destinations ---------------------------------------------------------------------------------------------------


def test_the_console_gets_one_line_of_json_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    events.record(Event("n", EventSource.AGENT, 17.5, {"a": 1}), "console")
    assert events.flush_all()

    out, err = capsys.readouterr()
    assert err == '{"name": "n", "source": "AGENT", "timestamp": 17.5, "metadata": {"a": 1}}\n'
    assert out == ""


def test_an_event_goes_to_every_destination_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events.record(EVENT, f"jsonl:{tmp_path / 'a'}, jsonl:{tmp_path / 'b'},console,null")
    events.close_all()

    lines = [(tmp_path / name).read_text() for name in "ab"]
    assert lines[0] == lines[1] == capsys.readouterr().err
    assert Event.deserialize(lines[0]).timestamp > 0


def test_a_destination_is_opened_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events.record(EVENT, f"jsonl:{path}")
    assert events.flush_all()
    path.rename(tmp_path / "moved")

    events.record(EVENT, f"jsonl:{path}")
    events.close_all()

    assert len((tmp_path / "moved").read_text().splitlines()) == 2
    assert not path.exists()


def test_what_is_closed_opens_again_when_needed(tmp_path: Path) -> None:
    spec = f"jsonl:{tmp_path / 'events.jsonl'}"
    for _ in range(2):
        events.record(EVENT, spec)
        events.close_all()

    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_an_unknown_destination_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no event handler 'consol'; did you mean console"):
        events.record(EVENT, "consol")


def test_a_handler_of_this_process_can_be_a_destination(collecting: Collecting) -> None:
    events.register("mine", collecting)

    events.record(EVENT, "mine")
    events.record(EVENT)

    assert [event.metadata for event in collecting.events] == [{"a": 1}]


@pytest.mark.parametrize("name", ["", "null", "a,b", "a:b"])
def test_a_destination_needs_a_name_that_can_be_written(name: str, collecting: Collecting) -> None:
    with pytest.raises(UsageError, match="cannot name"):
        events.register(name, collecting)


def test_nothing_is_lost_when_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import holdfast.events as e\n"
        f"for n in range(500): e.record(e.Event(str(n), e.EventSource.WORKER), 'jsonl:{tmp_path}/f')"
    )

    subprocess.run([sys.executable, "-c", code], check=True)

    names = [Event.deserialize(line).name for line in (tmp_path / "f").read_text().splitlines()]
    assert names == [str(number) for number in range(500)]


def test_a_forked_child_opens_its_own_destinations(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import os
        import holdfast.events as e
        spec = "jsonl:{tmp_path}/f"
        e.record(e.Event("parent", e.EventSource.AGENT), spec)
        e.flush_all()
        pid = os.fork()
        e.record(e.Event("child" if pid == 0 else "after", e.EventSource.WORKER), spec)
        e.close_all()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )

    subprocess.run([sys.executable, "-c", code], check=True)

    names = [Event.deserialize(line).name for line in (tmp_path / "f").read_text().splitlines()]
    assert sorted(names) == ["after", "child", "parent"]


def test_a_destination_that_blocks_does_not_block_the_caller_and_what_does_not_fit_is_counted(
    tmp_path: Path, heard: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named pipe without a reader: its few kilobytes are soon full."""
    monkeypatch.setattr("holdfast.events.recording.EVENTS_WAITING_MAX", 100)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    big = Event("n", EventSource.AGENT, metadata={"text": "x" * 10_000})

    for _ in range(500):
        events.record(big, f"jsonl:{pipe}")
    events.close_all(timeout=0.01)

    dropped = next(fact for fact in heard if fact.kind == "outbox_dropped")
    assert dropped.data["dropped"] > 300
    assert sum(fact.kind == "outbox_trouble" for fact in heard) == 1
    _drain(reader)


def _drain(reader: int) -> None:
    """Read until the thread that was stuck in the pipe has ended."""
    os.set_blocking(reader, False)
    for thread in threading.enumerate():
        while thread.name == "holdfast the event handler jsonl" and thread.is_alive():
            try:
                os.read(reader, 1 << 20)
            except BlockingIOError:
                thread.join(0.01)
    os.close(reader)


def test_a_destination_that_raises_is_reported_once(heard: list[Fact]) -> None:
    for _ in range(3):
        events.record(EVENT, "jsonl:/dev/full")
    events.close_all()

    (fact,) = heard
    assert "the event handler jsonl raised OSError(28, 'No space left on device')" in fact.sentence


# -- TorchElastic's logging handlers ----------------------------------------------------------------------------------


def log_through(handler: logging.Handler, message: str) -> None:
    logger = logging.Logger("torchelastic-events")
    logger.addHandler(handler)
    logger.info("%s", message)


@pytest.mark.parametrize("destination", ["null", "dynamic_rendezvous"])
def test_the_logging_handler_of_nowhere_is_a_null_handler(destination: str) -> None:
    assert isinstance(events.get_logging_handler(destination), logging.NullHandler)


def test_a_serialized_event_logged_through_a_handler_is_recorded(collecting: Collecting) -> None:
    events.register("mine", collecting)
    handler = events.get_logging_handler("mine")

    log_through(handler, Event("n", EventSource.WORKER, 3, {"a": 1}).serialize())
    log_through(handler, EVENT.serialize())
    log_through(handler, RdzvEvent("r", "run", "m", "h", 1, NodeState.INIT).serialize())
    log_through(handler, "no event at all")

    first, second, third, fourth = collecting.events
    assert first == Event("n", EventSource.WORKER, 3, {"a": 1})
    assert second.timestamp > 0
    assert (third.name, third.metadata["node_state"]) == ("r", "INIT")
    assert fourth.metadata == {"message": "no event at all"}
    assert events.get_logging_handler("mine") is handler


def test_the_logging_handler_of_the_console_prints(capsys: pytest.CaptureFixture[str]) -> None:
    log_through(events.get_logging_handler("console"), Event("n", EventSource.WORKER, 3).serialize())
    assert events.flush_all()

    assert json.loads(capsys.readouterr().err)["name"] == "n"


def test_a_logging_handler_can_be_registered_and_gets_serialized_events() -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    events.register("mine", Lines())
    events.record(Event("100%", EventSource.AGENT, 1), "mine")

    assert Event.deserialize(lines[0]).name == "100%"


# -- rendezvous events ------------------------------------------------------------------------------------------------


def test_rendezvous_events_go_to_the_registered_destination(collecting: Collecting) -> None:
    events.register("dynamic_rendezvous", collecting)

    events.construct_and_record_rdzv_event(
        "run", "joined", NodeState.RUNNING, rank=3, master_endpoint="h:1", local_id=2
    )

    (event,) = collecting.events
    assert event.name == ("test_recording.py:test_rendezvous_events_go_to_the_registered_destination")
    assert event.timestamp > 0
    assert event.metadata == {
        "run_id": "run",
        "message": "joined",
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "node_state": "RUNNING",
        "master_endpoint": "h:1",
        "rank": 3,
        "local_id": 2,
        "error_trace": "",
    }


def test_a_failed_nodes_event_carries_its_traceback(collecting: Collecting) -> None:
    events.configure(collecting)
    try:
        raise ValueError("no quorum")
    except ValueError:
        events.construct_and_record_rdzv_event("run", "failed", NodeState.FAILED, name="mine", hostname="h", pid=9)

    (event,) = collecting.events
    assert (event.name, event.metadata["hostname"], event.metadata["pid"]) == ("mine", "h", 9)
    assert "ValueError: no quorum" in str(event.metadata["error_trace"])


def test_without_a_listener_a_rendezvous_event_is_not_even_made() -> None:
    events.construct_and_record_rdzv_event("run", "m", "no state at all")  # type: ignore[arg-type]
    events.record_rdzv_event(RdzvEvent("n", "run", "m", "h", 1, NodeState.INIT))
