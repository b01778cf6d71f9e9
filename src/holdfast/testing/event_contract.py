"""What every event handler must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", event_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_handler, received=events_that_have_arrived)

`make()` returns a new `EventHandler`. `received()` returns the events that its destination has got so far, in order;
leave it out where they cannot be read back. A case fails with an `AssertionError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.events.api import Event, EventHandler, EventSource, NodeState, RdzvEvent
from holdfast.testing.cases import Background, Cases

Make = Callable[[], EventHandler]
Received = Callable[[], list[Event]]
Case = Callable[..., None]

THREADS, EVENTS = 4, 25

_case: Cases[Case] = Cases()


def event_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return _case.all()


def _event(name: str = "epoch.done", **metadata: str | float | bool | None) -> Event:
    return Event(name, EventSource.WORKER, 1574213883.25, dict(metadata))


@_case
def events_arrive_in_order(make: Make, received: Received | None = None) -> None:
    """With name, source, time and every kind of metadata."""
    handler = make()
    sent = [_event(epoch=3, loss=0.25, host="größe", last=True, note=None), _event("next", epoch=4)]
    sent.append(Event("agent", EventSource.AGENT, 1574213884.5))
    for event in sent:
        handler.record(event)
    handler.close()

    if received is not None:
        assert received() == sent


@_case
def events_of_the_rendezvous_arrive(make: Make, received: Received | None = None) -> None:
    """They are events like others."""
    handler = make()
    event = RdzvEvent("joined", "run-7", "round 1 is sealed", "node-1", 4711, NodeState.RUNNING, rank=0).as_event()
    handler.record(event)
    handler.close()

    if received is not None:
        assert [each.name for each in received()] == [event.name]


@_case
def odd_text_stays_one_event(make: Make, received: Received | None = None) -> None:
    """Line ends, quotes and half characters in names and values neither break an event nor the next one."""
    handler = make()
    handler.record(_event('a\nb\r"c"\\', text="\x00\x1b[2J\u2028", half="\udc80"))
    handler.record(_event("next"))
    handler.close()

    if received is not None:
        found = received()
        assert len(found) == 2
        assert found[1] == _event("next")


@_case
def several_threads_may_use_it(make: Make, received: Received | None = None) -> None:
    """Events that threads record at the same time all arrive whole."""
    handler = make()
    together = threading.Barrier(THREADS)

    def record(thread: int) -> None:
        together.wait()
        for number in range(EVENTS):
            handler.record(_event(f"thread {thread}", number=number))

    for each in [Background(lambda thread=thread: record(thread)) for thread in range(THREADS)]:  # type: ignore[misc]
        each.result()
    handler.close()

    if received is not None:
        found = received()
        for thread in range(THREADS):
            numbers = [each.metadata["number"] for each in found if each.name == f"thread {thread}"]
            assert numbers == list(range(EVENTS)), f"thread {thread}: {numbers}"


@_case
def the_event_is_not_changed(make: Make, received: Received | None = None) -> None:
    """Other handlers get the same object."""
    del received
    handler = make()
    event = _event(epoch=3)
    handler.record(event)
    handler.close()

    assert event == _event(epoch=3)


@_case
def one_that_was_never_used_can_be_closed(make: Make, received: Received | None = None) -> None:
    """And leaves no thread behind."""
    before = set(threading.enumerate())
    make().close()

    assert [each for each in threading.enumerate() if each not in before and not each.daemon] == []
    if received is not None:
        assert received() == []
