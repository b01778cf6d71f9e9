"""From the user's settings to a running agent: `LaunchConfig`, `elastic_launch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.launcher.api import LaunchConfig as LaunchConfig
    from holdfast.launcher.api import LaunchReport as LaunchReport
    from holdfast.launcher.api import elastic_launch as elastic_launch
    from holdfast.launcher.api import launch_agent as launch_agent
    from holdfast.launcher.api import run_agent as run_agent
else:
    # A component needs the table of flags and not the agent.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        api="LaunchConfig LaunchReport elastic_launch launch_agent run_agent",
    )
