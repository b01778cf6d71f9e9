"""From what a user asked for to an agent that runs: `LaunchConfig`, `elastic_launch`."""

from holdfast.launcher.api import LaunchConfig, LaunchReport, elastic_launch, launch_agent, run_agent

__all__ = ["LaunchConfig", "LaunchReport", "elastic_launch", "launch_agent", "run_agent"]
