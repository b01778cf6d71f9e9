"""Metrics: values over time, by group and name, sent to the sinks that the program or the launch chose.

    import holdfast.metrics as metrics

    metrics.configure(metrics.ConsoleMetricHandler(), group="my_app")
    metrics.getStream("my_app").add_value("loss", 0.25)

By default values go nowhere and cost next to nothing. A program chooses with `configure`; the flag `--metrics` of
`holdfast launch` and the variable `HOLDFAST_METRICS` choose for the agent and all its workers
(`holdfast.metrics.chosen`).
"""

from holdfast.metrics.api import (
    ConsoleMetricHandler,
    ConsoleMetricsHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    initialize_metrics,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "ConsoleMetricsHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]
