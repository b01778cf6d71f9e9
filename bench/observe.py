"""What telling about a job costs the job: metrics, timers, heartbeats and health.

    python -m bench observe

Figures in µs are the best of many short runs: what the code costs, not what a neighbour on the same core made of it;
the note gives the median. A case is a function that returns rows; `CASES` lists them.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
import timeit
from collections.abc import Callable
from typing import Any

from bench import health_probe
from bench._timers import served
from bench.harness import Case, Results, attempt, median
from holdfast import metrics, timer
from holdfast.metrics import api
from holdfast.metrics.chosen import QueueingMetricHandler
from holdfast.timer import heartbeat as beating
from holdfast.timer.beats import BeatBook

#: Calls in one run; a queue has room for all of them, so that dropping, which is cheaper, is not what is measured.
CALLS = 20_000
RUNS = 25

NULL_US_MAX = 1.0
QUEUED_US_MAX = 5.0
EXPIRES_US_MAX = 20.0
#: Timers in one run, few enough for the pipe of torch's server, and the pause in which a server catches up.
TIMERS = 100
CATCH_UP_S = 0.1


def timed_us(
    call: Callable[[], object], *, number: int = CALLS, between: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the microseconds of one call, as each run saw it; `between` is called after each run and not counted."""
    runs = []
    for _ in range(RUNS):
        runs.append(timeit.timeit(call, number=number) / number * 1e6)
        between()
    return runs


def middle(runs: list[float]) -> str:
    """Say what the median run saw."""
    return f"median {median(runs):.3g} µs"


# -- metrics -------------------------------------------------------------------------------------------------


class Counting(metrics.MetricHandler):
    """The cheapest sink there is, so that the queue is what is measured."""

    def __init__(self, gather_s: float) -> None:
        self.count = 0
        self.gather_s = gather_s

    def emit(self, metric_data: metrics.MetricData) -> None:  # noqa: ARG002
        self.count += 1


def add_value_null(full: bool) -> list[Case]:  # noqa: ARG001
    """No handler is configured."""
    with _fresh_metrics():
        stream = metrics.getStream("bench")
        ours = timed_us(lambda: stream.add_value("loss", 0.25))
    return [
        Case.at_most("add_value, null", min(ours), "µs", NULL_US_MAX, middle(ours)),
        Case.beside("the same, beside", min(ours), _torchs_add_value("NullMetricHandler"), "µs", less_is_better=True),
    ]


def add_value_queued(full: bool) -> list[Case]:  # noqa: ARG001
    """A sink behind a queue: what the caller pays while values gather, and while the thread is busy all the time."""
    cases = []
    for name, gather_s in (("add_value, queued", 0.05), ("the same, the queue's thread busy", 0.0)):
        sink = Counting(gather_s)
        queue = QueueingMetricHandler("bench", sink, items_max=CALLS * 2)
        with _fresh_metrics():
            metrics.configure(queue)
            stream = metrics.getStream("bench")
            ours = timed_us(lambda stream=stream: stream.add_value("loss", 0.25), between=queue.flush)
        queue.close()
        assert (sink.count, queue.outbox.dropped) == (CALLS * RUNS, 0)
        cases.append(Case.at_most(name, min(ours), "µs", QUEUED_US_MAX, middle(ours)))
    return cases


def add_value_console(full: bool) -> list[Case]:  # noqa: ARG001
    """Console handlers write on the caller's thread, in torch's and in ours; here into memory."""
    with _fresh_metrics(), contextlib.redirect_stdout(io.StringIO()):
        metrics.configure(metrics.ConsoleMetricHandler())
        stream = metrics.getStream("bench")
        ours = timed_us(lambda: stream.add_value("loss", 0.25))
        theirs = _torchs_add_value("ConsoleMetricHandler")
    return [Case.beside("add_value, console", min(ours), theirs, "µs", less_is_better=True, note=middle(ours))]


@contextlib.contextmanager
def _fresh_metrics() -> Any:
    before = api._routes
    api._routes = api._Routes({}, None, None)
    try:
        yield
    finally:
        api._routes = before


def _torchs_add_value(handler: str) -> float | None:
    try:
        import torch.distributed.elastic.metrics.api as theirs
    except ImportError:
        return None
    stream = theirs.MetricStream("bench", getattr(theirs, handler)())
    return min(timed_us(lambda: stream.add_value("loss", 0.25)))


# -- timers and heartbeats -----------------------------------------------------------------------------------


def expires_enter_leave(full: bool) -> list[Case]:  # noqa: ARG001
    """A timer set and released, with the server in another process, as the agent is; its place named, or looked up."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        with served("ours", f"{folder}/ours"):
            client = timer.FileTimerClient(f"{folder}/ours")
            timer.configure(client)
            ours = [_timed_expires(timer.expires, scope) for scope in (None, "bench")]
            assert not client._told, "timers that were not set would be cheaper than those that are measured"
            client.close()
        theirs = _torchs_expires(f"{folder}/theirs")
    return [
        Case.at_most("expires, enter and leave", min(ours[0]), "µs", EXPIRES_US_MAX, middle(ours[0])),
        Case.beside("the same, beside", min(ours[0]), theirs[0], "µs", less_is_better=True),
        Case.beside("... with a scope given", min(ours[1]), theirs[1], "µs", less_is_better=True),
    ]


def _timed_expires(expires: Callable[..., Any], scope: str | None) -> list[float]:
    def once() -> None:
        with expires(after=600, scope=scope):
            pass

    return timed_us(once, number=TIMERS, between=lambda: time.sleep(CATCH_UP_S))


def _torchs_expires(path: str) -> tuple[float | None, float | None]:
    try:
        from torch.distributed.elastic import timer as theirs
    except ImportError:
        return None, None
    with served("torch", path):
        theirs.configure(theirs.FileTimerClient(path))
        return min(_timed_expires(theirs.expires, None)), min(_timed_expires(theirs.expires, "bench"))


def heartbeats(full: bool) -> list[Case]:  # noqa: ARG001
    """A beat with a watchdog, and one without."""
    book = BeatBook(1)
    try:
        os.environ.update(book.variables(0))
        beating._after_fork()  # look for a slot again
        watched = timed_us(lambda: beating.heartbeat(7))
        assert book.read(0).step == 7
    finally:
        for name in book.variables(0):
            os.environ.pop(name)
        beating._after_fork()
        book.close()
    alone = timed_us(lambda: beating.heartbeat(7))
    return [
        Case.seen("heartbeat(step)", min(watched), "µs", middle(watched)),
        Case.seen("... without a watchdog", min(alone), "µs", middle(alone)),
    ]


# -- the run -------------------------------------------------------------------------------------------------

#: Every case, in the order of the table.
CASES: tuple[Callable[[bool], list[Case]], ...] = (
    add_value_null,
    add_value_queued,
    add_value_console,
    expires_enter_leave,
    heartbeats,
    health_probe.health_probes,
)


def run(full: bool) -> Results:
    """Measure every case."""
    cases = [case for measure in CASES for case in attempt(measure.__name__, lambda measure=measure: measure(full))]
    return Results("what telling about a job costs it", cases, rival="torch.distributed.elastic")
