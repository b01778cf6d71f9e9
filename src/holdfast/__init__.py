"""Holdfast launches distributed training and keeps it running through every failure."""

# `typing` takes longer to import than the rest of this file, and Ctrl-C meanwhile would end in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast import train
    from holdfast.timer.heartbeat import heartbeat, pause, resume
    from holdfast.train.errors import NonRetryableException, RoundOver, StopException
    from holdfast.train.pytree import PytreeState
    from holdfast.train.run import elastic
    from holdfast.train.state import NumpyState, State, TreeState

__version__ = "0.1.0"

#: What programs use, and the module that it comes from; nothing of it is imported before it is asked for.
_NAMES = {
    "heartbeat": "holdfast.timer.heartbeat",
    "pause": "holdfast.timer.heartbeat",
    "resume": "holdfast.timer.heartbeat",
    "elastic": "holdfast.train.run",
    "NumpyState": "holdfast.train.state",
    "PytreeState": "holdfast.train.pytree",
    "State": "holdfast.train.state",
    "TreeState": "holdfast.train.state",
    "NonRetryableException": "holdfast.train.errors",
    "RoundOver": "holdfast.train.errors",
    "StopException": "holdfast.train.errors",
}
#: Parts of the package that can be used without importing them by name.
_PARTS = ("checkpoint", "errors", "launcher", "runner", "torch", "train")
__all__ = [
    "NonRetryableException",
    "NumpyState",
    "PytreeState",
    "RoundOver",
    "State",
    "StopException",
    "TreeState",
    "__version__",
    "elastic",
    "heartbeat",
    "pause",
    "resume",
    "train",
]


def __getattr__(name: str) -> "Any":
    """Load what user code needs only when it asks for it."""
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"holdfast.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_NAMES[name]), name)
    return value


def __dir__() -> "list[str]":
    return sorted({*__all__, *_PARTS})
