"""The sinks that a launch chose, by group, each behind its queue. Workers load this with their first value."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.metrics import api, source, specs
from holdfast.metrics.api import MetricHandler, NullMetricHandler
from holdfast.metrics.queueing import FanOut, QueueingMetricHandler
from holdfast.metrics.specs import Spec
from holdfast.outbox import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from holdfast.metrics.relay import Relay
    from holdfast.metrics.sinks.prometheus import PrometheusMetricHandler

#: Sinks whose argument is a path: a worker may stand in another folder when it first looks.
TAKE_PATHS = ("jsonl",)


class Metrics:
    """Every sink that a launch chose; closed by whoever chose, or when the process ends."""

    def __init__(self, chosen: Sequence[Spec], make: Callable[[Spec], MetricHandler]) -> None:
        self.specs = tuple(chosen)
        #: Where Prometheus was chosen: what keeps the values to be scraped, and what takes those of the workers.
        self.prometheus: PrometheusMetricHandler | None = None
        self.relay: Relay | None = None
        #: One for each sink and argument, whatever the number of groups that it serves.
        self._queues: dict[tuple[str, str], MetricHandler] = {}
        for spec in chosen:
            if (spec.sink, spec.argument) not in self._queues:
                self._queues[spec.sink, spec.argument] = _behind_queue(spec.sink, make(spec))
        self._by_group = {group: self._handler(group) for group in dict.fromkeys(spec.group for spec in chosen)}
        self._pid = os.getpid()
        _at_exit(self.close)

    @property
    def registry(self) -> Any:
        """The Prometheus registry to scrape, or None where Prometheus was not chosen."""
        return None if self.prometheus is None else self.prometheus.registry

    def handler_for(self, group: str) -> MetricHandler | None:
        """Return what takes the values of a group, or None if nobody does."""
        return self._by_group.get(group, self._by_group.get(None))

    def worker_environment(self) -> dict[str, str]:
        """Return the variables by which workers find the same sinks."""
        if not self.specs:
            return {}
        env = {source.METRICS_VARIABLE: specs.join([_with_full_path(spec) for spec in self.specs])}
        if self.relay is not None:
            env[source.SOCKET_VARIABLE] = str(self.relay.path)
        return env

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until what was added so far is with every sink; says whether that came about in time."""
        flushed = [queue.flush(left) for queue, left in self._with_time_left(timeout_s)]
        return all(flushed)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Hand over what is left and close every sink, within `timeout_s` for all of them together.

        In a forked child it does nothing: the sinks are the parent's.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        if self.relay is not None:
            self.relay.close()
        for queue, left in self._with_time_left(timeout_s):
            queue.close(left)
        if api.installed() is self:
            api.install(api.NOBODY)

    def _handler(self, group: str | None) -> MetricHandler:
        wanted = [self._queues[spec.sink, spec.argument] for spec in self.specs if spec.group == group]
        return wanted[0] if len(wanted) == 1 else FanOut(wanted)

    def _with_time_left(self, timeout_s: float) -> Iterator[tuple[QueueingMetricHandler, float]]:
        deadline = time.monotonic() + timeout_s
        for queue in self._queues.values():
            if isinstance(queue, QueueingMetricHandler):
                yield queue, max(0.0, deadline - time.monotonic())


def _behind_queue(name: str, handler: MetricHandler) -> MetricHandler:
    return handler if type(handler) is NullMetricHandler else QueueingMetricHandler(name, handler)


def _at_exit(close: Callable[[], None]) -> None:
    """Have the sinks closed when this process ends; a child of multiprocessing ends without atexit."""
    atexit.register(close)
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)


def _with_full_path(spec: Spec) -> Spec:
    if spec.sink not in TAKE_PATHS or not spec.argument:
        return spec
    return Spec(spec.group, spec.sink, str(Path(spec.argument).absolute()))
