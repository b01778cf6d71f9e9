"""Holdfast launches distributed training anywhere and keeps it running through every failure."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.timer.heartbeat import heartbeat

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "heartbeat"]


def __getattr__(name: str) -> Any:
    """Load what user code needs only when it asks for it."""
    if name == "heartbeat":
        from holdfast.timer.heartbeat import heartbeat

        globals()[name] = heartbeat
        return heartbeat
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
