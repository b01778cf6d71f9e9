"""From what a user asked for to an agent that runs: `LaunchConfig`, `elastic_launch`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.launcher.api import LaunchConfig, LaunchReport, elastic_launch, launch_agent, run_agent

__all__ = ["LaunchConfig", "LaunchReport", "elastic_launch", "launch_agent", "run_agent"]


def __getattr__(name: str) -> Any:
    """Import the agent only for a launch: a component needs no more than the table of flags."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.api"), name)


def __dir__() -> list[str]:
    return __all__
