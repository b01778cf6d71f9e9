"""In a worker: the sinks that its launch chose, found in the environment with the first value.

The sinks themselves are made on the threads of their queues: looking plugins up, importing and connecting may take
long, and the training waits for none of it.
"""

from __future__ import annotations

import os
from functools import partial

from holdfast.metrics import source, specs
from holdfast.metrics.api import MetricHandler
from holdfast.metrics.chosen import Metrics
from holdfast.metrics.queueing import LateMetricHandler
from holdfast.metrics.specs import Spec


def chosen_for_worker() -> Metrics | None:
    """Return what the launch chose for this process, or None if that is no worker of it; raises `UsageError`."""
    if not source.is_worker(os.environ):
        return None
    chosen = specs.parse([os.environ[source.METRICS_VARIABLE]])
    return Metrics(chosen, lambda spec: LateMetricHandler(partial(_create, spec)))


def _create(spec: Spec) -> MetricHandler:
    from holdfast.metrics.choose import create

    return create(spec)
