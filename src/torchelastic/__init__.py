"""The name of the first torchelastic, which nobody maintains any more, answered by Holdfast.

Everything below it leads to a module of Holdfast: `torchelastic.metrics` is `holdfast.metrics`.
"""

from typing import Any

from holdfast import __version__, compat

compat.install("torchelastic")

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
    import holdfast

    if name in __all__:
        return getattr(holdfast, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
