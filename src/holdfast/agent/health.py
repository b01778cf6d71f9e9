"""An agent's health server and its data: whether the loop makes progress, the status, and metrics for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.health import PORT_VARIABLE, create_healthcheck_server, parse_health_port

if TYPE_CHECKING:
    from holdfast.agent.driver import Agent
    from holdfast.metrics.chosen import Metrics
    from holdfast.metrics.scraping import Scraping
    from holdfast.wire.address import Endpoint

#: As TorchElastic has it.
HEALTH_TIMEOUT_S = 60.0
NO_CLIENT = "there are no metrics here: the agent lacks the Prometheus client; pip install 'holdfast[prometheus]' there"


class AgentMetrics:
    """Where the metrics of an agent and its workers go, and which of them Prometheus reads."""

    def __init__(self, chosen: Metrics | None) -> None:
        self._chosen = chosen
        self._scraping: Scraping | None = None

    def start(self) -> None:
        """Begin to collect metrics for Prometheus."""
        if self._scraping is not None:
            self._scraping.start()

    def stop(self) -> None:
        """Stop collecting."""
        if self._scraping is not None:
            self._scraping.close()

    def offer(self, role: str) -> Callable[[], tuple[bytes, str]] | None:
        """Return the function that makes the page for Prometheus, or None if its client is not installed."""
        from holdfast.metrics.sinks.prometheus import is_installed  # launches without a health port need none of it

        if not is_installed():
            return None
        if self._chosen is None or self._chosen.prometheus is None:
            from holdfast.metrics.scraping import Scraping

            self._scraping = Scraping(role)
        return self._scrape

    def keep_ranks(self, ranks: list[int]) -> None:
        """Forget the metrics of all other ranks."""
        if self._chosen is not None and self._chosen.prometheus is not None:
            self._chosen.prometheus.keep_ranks(ranks)
        if self._scraping is not None:
            self._scraping.keep_ranks(ranks)

    def variables(self) -> dict[str, str]:
        """Tell workers where their metrics go."""
        if self._scraping is not None:
            return self._scraping.worker_environment(self._chosen)
        return self._chosen.worker_environment() if self._chosen is not None else {}

    def _scrape(self) -> tuple[bytes, str]:
        if self._scraping is not None:
            return self._scraping.scrape()
        from holdfast.metrics.sinks.prometheus import CONTENT_TYPE, render

        assert self._chosen is not None
        return render(self._chosen.registry), CONTENT_TYPE


class AgentHealth:
    """A health server, ours or the user's, with the metrics that it shows."""

    def __init__(self, server: Any, metrics: AgentMetrics) -> None:
        self._server = server
        self._metrics = metrics

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()
        self._metrics.start()

    def stop(self) -> None:
        """Stop answering."""
        self._metrics.stop()
        self._server.stop()

    @property
    def look_every_s(self) -> float | None:
        """How often the server checks that the agent's loop makes progress, if it says so."""
        return getattr(self._server, "look_every_s", None)


def make_health(
    agent: Agent,
    role: str,
    where: Endpoint | None,
    timeout_s: float,
    metrics: AgentMetrics,
    watchdog_moved: Callable[[], float],
) -> AgentHealth | None:
    """Make the health server of an agent if one is asked for, here or by TORCHELASTIC_HEALTH_CHECK_PORT."""
    if where is None and (text := os.environ.get(PORT_VARIABLE)):
        where = parse_health_port(text, PORT_VARIABLE)
    if where is None:
        return None
    server = create_healthcheck_server(
        agent.pulse,
        where.port,
        timeout_s,
        host=where.host,
        status=agent.status,
        ready=agent.readiness,
        metrics=metrics.offer(role),
        no_metrics=NO_CLIENT,
        watched={"the watchdog": watchdog_moved},
    )
    return AgentHealth(server, metrics)
