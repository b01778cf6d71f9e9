"""The trackers of a run, from the settings and the environment of the process that submits it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.runner import config

NAMES = "TORCHX_TRACKERS"


def get_configured_trackers(environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Return the trackers of runs, each with its configuration.

    `TORCHX_TRACKERS` names them, or the section `[torchx:tracker]` of the settings; a tracker's configuration is
    `TORCHX_TRACKER_<NAME>_CONFIG`, `config` in `[tracker:<name>]`, or what stands beside its name.
    """
    settings = config.load(environ=environ)
    listed = settings.values("torchx", "tracker")
    if NAMES in environ:
        names = [name.strip() for name in environ[NAMES].split(",") if name.strip()]
        listed = {name: listed.get(name) for name in names}
    return {
        name: environ.get(_variable(name)) or settings.values("tracker", name).get("config") or beside or None
        for name, beside in listed.items()
    }


def tracker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the trackers to a run's processes; empty if there are none."""
    trackers = get_configured_trackers(environ)
    if not trackers:
        return {}
    return {NAMES: ",".join(trackers), **{_variable(name): text for name, text in trackers.items() if text}}


def _variable(name: str) -> str:
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"
