"""A queue before a handler: whoever adds a value never waits for the sink, and never hears of its troubles."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.outbox import CLOSE_TIMEOUT_S, GATHER_S, ITEMS_MAX, Outbox
from holdfast.text import clean


class QueueingMetricHandler(MetricHandler):
    """Hands values to another handler on a thread of its own; bounded, with drops counted.

    Where the other handler has them, `flush()` is called whenever the queue has been emptied, `close()` at the end, and
    `gather_s` says how long values may wait for company.
    """

    def __init__(self, name: str, handler: MetricHandler, *, items_max: int = ITEMS_MAX) -> None:
        self._handler = handler
        self.outbox: Outbox[MetricData] = Outbox(
            f"the metrics sink '{name}'",
            self._deliver,
            items_max=items_max,
            settle=self._settle,
            finish=getattr(handler, "close", None),
        )
        self.outbox.gather_s = getattr(handler, "gather_s", GATHER_S)
        self._put = self.outbox.put

    def emit(self, metric_data: MetricData) -> None:
        """Leave one value; never waits and never raises."""
        self._put(metric_data)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until what was left so far is with the sink; says whether that came about in time."""
        return self.outbox.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Hand over what is left, close the sink, and wait no longer than `timeout_s` for both."""
        return self.outbox.close(timeout_s)

    def _deliver(self, data: MetricData) -> None:
        """Hand a value over with names that every sink can write: one bad name must not cost the whole batch."""
        if not (data.name.isascii() and data.group_name.isascii()):
            data = data._replace(group_name=clean(data.group_name), name=clean(data.name))
        self._handler.emit(data)

    def _settle(self) -> None:
        self.outbox.gather_s = getattr(self._handler, "gather_s", GATHER_S)
        flush = getattr(self._handler, "flush", None)
        if flush is not None:
            flush()


class LateMetricHandler(MetricHandler):
    """Makes the true handler when the first value comes, which behind a queue costs the caller nothing."""

    def __init__(self, make: Callable[[], MetricHandler]) -> None:
        self._make: Callable[[], MetricHandler] | None = make
        self._handler: MetricHandler | None = None

    @property
    def gather_s(self) -> float:
        """How long values may wait for company."""
        return getattr(self._handler, "gather_s", GATHER_S)

    def emit(self, metric_data: MetricData) -> None:
        """Hand one value on; where no handler could be made, that was raised once and values are forgotten."""
        if self._make is not None:
            make, self._make = self._make, None
            self._handler = make()
        if self._handler is not None:
            self._handler.emit(metric_data)

    def flush(self) -> None:
        """Have the true handler send what it has gathered."""
        self._call("flush")

    def close(self) -> None:
        """Close the true handler, if it was ever made."""
        self._call("close")

    def _call(self, method: str) -> None:
        call = getattr(self._handler, method, None)
        if call is not None:
            call()


class FanOut(MetricHandler):
    """Hands every value to several handlers, none of which raises."""

    def __init__(self, handlers: list[MetricHandler]) -> None:
        self.handlers = handlers

    def emit(self, metric_data: MetricData) -> None:
        """Hand one value to each."""
        for handler in self.handlers:
            handler.emit(metric_data)
