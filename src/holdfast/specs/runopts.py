"""Run options: what a scheduler lets the user choose for one run. Pure."""

from __future__ import annotations

#: What a run option may hold.
CfgVal = str | int | float | bool | list[str] | dict[str, str] | None
