"""Choosing sinks by name: what `--metrics` says becomes handlers that get every value.

Every sink comes in by entry point of the group `holdfast.metrics`, ours like everybody's: a function
`create_handler(argument) -> MetricHandler`, called with what stands after the first colon. Each stands behind a queue.

A sink that does not exist, or that says what is wrong with its argument, is the caller's mistake and raises. One that
is broken is reported by name and left out: a job is worth more than its figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from holdfast import plugins
from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.metrics import api, source, specs
from holdfast.metrics.api import MetricHandler, NullMetricHandler
from holdfast.metrics.chosen import Metrics
from holdfast.metrics.specs import Spec

if TYPE_CHECKING:
    from holdfast.metrics.sinks.prometheus import PrometheusMetricHandler

ENTRY_POINTS = "holdfast.metrics"
PROMETHEUS = "prometheus"


def check(texts: Sequence[str]) -> list[Spec]:
    """Return what `--metrics` says, or raise if it names a sink that does not exist."""
    chosen = specs.parse(texts)
    for spec in chosen:
        _find(spec)
    return chosen


def configure_from(texts: Sequence[str], *, run_id: str = "", role: str = "", node: str = "") -> Metrics:
    """Open the sinks that `--metrics` names and hand them every value of this process, an agent or launcher.

    `run_id`, `role` and `node` say who speaks, for the sinks that put it beside the values. What was chosen before is
    closed. Where Prometheus is chosen, workers hand their values to this process over a socket.
    """
    chosen = check(texts)
    source.announce(run_id, role, node)
    made: dict[tuple[str, str], MetricHandler] = {}
    try:
        for spec in chosen:
            if (spec.sink, spec.argument) not in made:
                made[spec.sink, spec.argument] = _create_or_report(spec)
    except UsageError:
        for handler in made.values():
            with contextlib.suppress(Exception):  # the mistake is what matters now
                getattr(handler, "close", lambda: None)()
        raise
    metrics = Metrics(chosen, lambda spec: made[spec.sink, spec.argument])
    prometheus = made.get((PROMETHEUS, ""))
    if prometheus is not None and hasattr(prometheus, "keep_ranks"):
        _open_relay(metrics, cast("PrometheusMetricHandler", prometheus))
    before = api.installed()
    api.install(metrics)
    if isinstance(before, Metrics):
        before.close()
    return metrics


def create(spec: Spec) -> MetricHandler:
    """Make one sink's handler; raises `UsageError`, or whatever a broken one raises."""
    plugin = _find(spec)
    handler = plugin.load()(spec.argument)
    if not callable(getattr(handler, "emit", None)):
        raise TypeError(f"{plugin.value} returned {handler!r}, which has no 'emit'")
    return cast("MetricHandler", handler)


def _find(spec: Spec) -> plugins.Plugin:
    plugin = plugins.get(spec.sink, ENTRY_POINTS)
    if plugin is None:
        raise specs.unknown_sink(spec, [each.name for each in plugins.find(ENTRY_POINTS)])
    return plugin


def _create_or_report(spec: Spec) -> MetricHandler:
    try:
        return create(spec)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's sink may raise anything
        text = str(error) if isinstance(error, plugins.PluginBrokenError) else f"it raised {error!r}"
        facts.warn("plugin_broken", f"the metrics sink '{spec.sink}' is left out: {text}", plugin=spec.sink)
        return NullMetricHandler()


def _open_relay(metrics: Metrics, prometheus: PrometheusMetricHandler) -> None:
    from holdfast.metrics.relay import Relay

    metrics.prometheus = prometheus
    try:
        metrics.relay = Relay(None, prometheus.record)
    except OSError as error:
        facts.warn("metrics_trouble", f"the workers' metrics will be missing at /metrics: {error}")
