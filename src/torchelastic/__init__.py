"""The name of the first torchelastic, which is not maintained any more, answered by Holdfast.

Everything below it leads to a module of Holdfast: `torchelastic.metrics` is `holdfast.metrics`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import __version__, compat

if TYPE_CHECKING:
    from holdfast.compat.torchelastic.coordinator import Coordinator, SimpleWorkerStats, WorkerStats
    from holdfast.compat.torchelastic.loop import run_train, train
    from holdfast.train.errors import NonRetryableException, StopException
    from holdfast.train.state import State

compat.install("torchelastic")

#: Each name and where it lives; nothing is imported before it is used.
_HOMES = {
    "Coordinator": "compat.torchelastic.coordinator",
    "NonRetryableException": "train.errors",
    "SimpleWorkerStats": "compat.torchelastic.coordinator",
    "State": "train.state",
    "StopException": "train.errors",
    "WorkerStats": "compat.torchelastic.coordinator",
    "run_train": "compat.torchelastic.loop",
    "train": "compat.torchelastic.loop",
}

__all__ = [
    "Coordinator",
    "NonRetryableException",
    "SimpleWorkerStats",
    "State",
    "StopException",
    "WorkerStats",
    "__version__",
    "run_train",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load what a program uses when it uses it."""
    if name in _HOMES:
        return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
