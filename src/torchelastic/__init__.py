"""The name of the first torchelastic, which is not maintained any more, answered by Holdfast.

The names of 2019 (`train`, `State`, `Coordinator`...) are here. Everything below leads to a module of Holdfast:
`torchelastic.metrics` is `holdfast.metrics`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import __version__, compat

if TYPE_CHECKING:
    from holdfast.compat.errors import NonRetryableException as NonRetryableException
    from holdfast.compat.errors import StopException as StopException
    from holdfast.compat.torchelastic.coordinator import Coordinator as Coordinator
    from holdfast.compat.torchelastic.coordinator import SimpleWorkerStats as SimpleWorkerStats
    from holdfast.compat.torchelastic.coordinator import WorkerStats as WorkerStats
    from holdfast.compat.torchelastic.loop import run_train as run_train
    from holdfast.compat.torchelastic.loop import train as train
    from holdfast.train.state import State as State

compat.install("torchelastic")

_NAMES = {
    "Coordinator": "torchelastic.coordinator",
    "NonRetryableException": "torchelastic.coordinator",
    "SimpleWorkerStats": "torchelastic.worker_stats",
    "State": "torchelastic.state",
    "StopException": "torchelastic.coordinator",
    "WorkerStats": "torchelastic.worker_stats",
    "run_train": "torchelastic.train_loop",
    "train": "torchelastic.train_loop",
}
__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
