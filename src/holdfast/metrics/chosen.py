"""The sinks that a launch chose with `--metrics` or `HOLDFAST_METRICS`, each behind its queue.

An agent or launcher opens them with `configure_from`. Its workers find the same choice in their environment and open
the sinks with their first value.

A sink that does not exist, or that refuses its argument, is the user's mistake and raises. A sink that is broken is
reported by name and left out: a job is worth more than its metrics.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast import sinks
from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.metrics import api, source
from holdfast.metrics.api import MetricData, MetricHandler, NullMetricHandler
from holdfast.outbox import CLOSE_TIMEOUT_S, ITEMS_MAX
from holdfast.sinks import Choice, Queued
from holdfast.text import clean

if TYPE_CHECKING:
    from holdfast.metrics.relay import Relay
    from holdfast.metrics.sinks.prometheus import PrometheusMetricHandler

NOUN = "metrics sink"
KIND = sinks.Kind(NOUN, "holdfast.metrics", "emit", has_groups=True)
PROMETHEUS = "prometheus"
#: Sinks whose argument is a path: a worker may have another working directory.
TAKE_PATHS = ("jsonl",)


class QueueingMetricHandler(Queued[MetricData], MetricHandler):
    """Hands values to another handler through a bounded queue, on a thread of its own."""

    def __init__(
        self,
        name: str,
        handler: MetricHandler | None = None,
        *,
        make: Callable[[], MetricHandler] | None = None,
        items_max: int = ITEMS_MAX,
    ) -> None:
        super().__init__(f"the metrics sink '{name}'", _emit_clean, handler=handler, make=make, items_max=items_max)

    def emit(self, metric_data: MetricData) -> None:
        self.put(metric_data)


def _emit_clean(handler: MetricHandler, data: MetricData) -> None:
    """Emit a value under names that every sink can write: one bad name must not cost the whole batch."""
    if not (data.name.isascii() and data.group_name.isascii()):
        data = data._replace(group_name=clean(data.group_name), name=clean(data.name))
    handler.emit(data)


class FanOut(MetricHandler):
    """Hands every value to several handlers, none of which raises."""

    def __init__(self, handlers: list[MetricHandler]) -> None:
        self.handlers = handlers

    def emit(self, metric_data: MetricData) -> None:
        for handler in self.handlers:
            handler.emit(metric_data)


class Metrics:
    """Every sink that a launch chose; closed by the code that opened them, or when the process ends."""

    def __init__(self, chosen: Sequence[Choice], handlers: dict[Choice, MetricHandler]) -> None:
        self.chosen = tuple(chosen)
        #: Where Prometheus was chosen: the handler that is scraped, and the socket that takes the workers' values.
        self.prometheus: PrometheusMetricHandler | None = None
        self.relay: Relay | None = None
        #: By sink and argument, without a group: one handler may serve several groups.
        self._handlers = handlers
        self._queues = [each for each in handlers.values() if isinstance(each, QueueingMetricHandler)]
        self._by_group = {group: self._handler(group) for group in dict.fromkeys(each.group for each in chosen)}
        self._pid = os.getpid()
        _at_exit(self.close)

    @property
    def registry(self) -> Any:
        """The Prometheus registry to scrape, or None if Prometheus was not chosen."""
        return None if self.prometheus is None else self.prometheus.registry

    def handler_for(self, group: str) -> MetricHandler | None:
        """Return the handler of a group's values, or None if there is none."""
        return self._by_group.get(group, self._by_group.get(None))

    def worker_environment(self) -> dict[str, str]:
        """Return the variables by which workers find the same sinks."""
        if not self.chosen:
            return {}
        env = {source.METRICS_VARIABLE: sinks.join([_with_full_path(choice) for choice in self.chosen])}
        if self.relay is not None:
            env[source.SOCKET_VARIABLE] = str(self.relay.path)
        return env

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until every sink has the values so far; return whether that took no longer than `timeout_s`."""
        return sinks.flush_all(self._queues, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Deliver the rest and close every sink, within `timeout_s` for all of them together.

        In a forked child it does nothing: the sinks are the parent's.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        if self.relay is not None:
            self.relay.close()
        sinks.close_all(self._queues, timeout_s)
        if api.installed() is self:
            api.install(api.NO_SINKS)

    def _handler(self, group: str | None) -> MetricHandler:
        wanted = [self._handlers[_without_group(choice)] for choice in self.chosen if choice.group == group]
        return wanted[0] if len(wanted) == 1 else FanOut(wanted)


def check(texts: Sequence[str]) -> list[Choice]:
    """Return the sinks that `--metrics` names; raises `UsageError` if one of them does not exist."""
    chosen = KIND.parse(texts)
    for choice in chosen:
        KIND.find(choice)
    return chosen


def configure_from(texts: Sequence[str], *, run_id: str = "", role: str = "", node: str = "") -> Metrics:
    """Open the sinks that `--metrics` names and hand them every value of this process, an agent or launcher.

    Sinks put `run_id`, `role` and `node` beside the values. Sinks that were opened before are closed. Where Prometheus
    is chosen, workers send their values to this process over a socket.
    """
    chosen = check(texts)
    source.announce(run_id, role, node)
    made: dict[Choice, MetricHandler] = {}
    try:
        for choice in map(_without_group, chosen):
            if choice not in made:
                made[choice] = _make_or_report(choice)
    except UsageError:
        for handler in made.values():
            with contextlib.suppress(Exception):  # the mistake is what matters now
                getattr(handler, "close", lambda: None)()
        raise
    metrics = Metrics(chosen, {choice: _behind_queue(choice, handler) for choice, handler in made.items()})
    prometheus = made.get(Choice(PROMETHEUS))
    if prometheus is not None and hasattr(prometheus, "keep_ranks"):
        _open_relay(metrics, cast("PrometheusMetricHandler", prometheus))
    before = api.installed()
    api.install(metrics)
    if isinstance(before, Metrics):
        before.close()
    return metrics


def chosen_for_worker() -> Metrics | None:
    """Return the sinks that the launch chose for this worker, or None in any other process; raises `UsageError`."""
    if not source.is_worker(os.environ):
        return None
    chosen = KIND.parse([os.environ[source.METRICS_VARIABLE]])
    sole = map(_without_group, chosen)
    return Metrics(chosen, {each: QueueingMetricHandler(each.name, make=partial(KIND.make, each)) for each in sole})


def _without_group(choice: Choice) -> Choice:
    return replace(choice, group=None)


def _make_or_report(choice: Choice) -> MetricHandler:
    try:
        return cast(MetricHandler, KIND.make(choice))
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        from holdfast.errors import PluginBrokenError

        text = str(error) if isinstance(error, PluginBrokenError) else f"it raised {error!r}"
        facts.warn("plugin_broken", f"the metrics sink '{choice.name}' is left out: {text}", plugin=choice.name)
        return NullMetricHandler()


def _behind_queue(choice: Choice, handler: MetricHandler) -> MetricHandler:
    return handler if type(handler) is NullMetricHandler else QueueingMetricHandler(choice.name, handler)


def _open_relay(metrics: Metrics, prometheus: PrometheusMetricHandler) -> None:
    from holdfast.metrics.relay import Relay

    metrics.prometheus = prometheus
    try:
        metrics.relay = Relay(None, prometheus.record)
    except OSError as error:
        facts.warn("metrics_trouble", f"the workers' metrics will be missing at /metrics: {error}")


def _at_exit(close: Callable[[], None]) -> None:
    """Close the sinks when this process ends; a child of multiprocessing ends without atexit."""
    atexit.register(close)
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)


def _with_full_path(choice: Choice) -> Choice:
    if choice.name not in TAKE_PATHS or not choice.argument:
        return choice
    return replace(choice, argument=str(Path(choice.argument).absolute()))
