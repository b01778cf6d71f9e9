"""Trackers store the artifacts, sources and metadata of runs.

api      the interface of a tracker, and `AppRun`, by which a program adds to its own run
backend  `fsspec`: files in a folder, here or anywhere that fsspec reaches

A program calls `app_run_from_env()` and adds its results. The user chooses the trackers when submitting it:
`[torchx:tracker]` and `[tracker:<name>]` in the settings, or the variable `TORCHX_TRACKERS`. Trackers are entry points
of the groups `holdfast.tracker` and `torchx.tracker`.
"""

from __future__ import annotations

from holdfast.tracker.api import AppRun

__all__ = ["AppRun", "app_run_from_env"]


def app_run_from_env() -> AppRun:
    """Return this process's run, with the trackers that its environment names; the same one every time."""
    return AppRun.run_from_env()
