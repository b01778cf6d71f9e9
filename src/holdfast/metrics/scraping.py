"""`/metrics` of a launch without a Prometheus sink: the platform's metrics and those of the workers.

The health port answers `/metrics` without another flag. Until the first request this costs a few dict entries and a
sleeping thread: values are plain numbers, and the client is imported with the first scrape.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.metrics import source
from holdfast.metrics.api import PLATFORM_GROUP, MetricStream
from holdfast.metrics.platform import PlatformMetrics
from holdfast.sinks import Choice, join

if TYPE_CHECKING:
    from holdfast.metrics.chosen import Metrics
    from holdfast.metrics.relay import Relay

SINK = "prometheus"


class Scraping:
    """Keeps an agent's metrics and those of its workers to be scraped, between `start` and `close`."""

    def __init__(self, role: str) -> None:
        from holdfast.metrics.sinks.prometheus import PrometheusMetricHandler

        self._handler = PrometheusMetricHandler()
        self._platform = PlatformMetrics(role, stream=MetricStream(PLATFORM_GROUP, self._handler))
        self._relay: Relay | None = None

    def start(self) -> None:
        """Start to keep values."""
        from holdfast.metrics.relay import Relay

        self._platform.start()
        if self._relay is None:
            try:
                self._relay = Relay(None, self._handler.record)
            except OSError as error:
                facts.warn("metrics_trouble", f"the workers' metrics will be missing at /metrics: {error}")

    def close(self) -> None:
        """Stop keeping values."""
        self._platform.stop()
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()

    def worker_environment(self, chosen: Metrics | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables by which workers find the chosen sinks and this relay."""
        from holdfast.metrics.chosen import KIND

        before = chosen.worker_environment() if chosen is not None else {}
        if self._relay is None:
            return before
        try:
            wanted = KIND.parse([before.get(source.METRICS_VARIABLE) or environ.get(source.METRICS_VARIABLE, "")])
        except UsageError:  # each worker reports it
            return before
        return {
            source.METRICS_VARIABLE: join([*wanted, *_additions(wanted)]),
            source.SOCKET_VARIABLE: str(self._relay.path),
        }

    def keep_ranks(self, ranks: Collection[int]) -> None:
        """Forget the values of workers that left this node."""
        self._handler.keep_ranks(ranks)

    def scrape(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' format, and its content type."""
        from holdfast.metrics.sinks.prometheus import CONTENT_TYPE, render

        return render(self._handler.registry), CONTENT_TYPE


def _additions(wanted: Sequence[Choice]) -> list[Choice]:
    """Return what to add so that every group is scraped, except groups that go to `null`."""
    groups: dict[str | None, list[str]] = {None: []}
    for choice in wanted:
        groups.setdefault(choice.group, []).append(choice.name)
    return [
        Choice(SINK, group=group) for group, sinks in groups.items() if SINK not in sinks and set(sinks) != {"null"}
    ]
