"""The runner as programs written for TorchX know it: the lines of logs keep their ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.runner import api
from holdfast.runner.api import SESSION

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.schedulers import Stream


class Runner(api.Runner):
    """Our runner, whose lines end as they were written."""

    def log_lines(
        self,
        app_handle: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterator[str]:
        """Yield the lines that one replica wrote, each with its newline; with `should_tail` until it has ended."""
        lines = super().log_lines(app_handle, role_name, k, regex, since, until, should_tail, streams)
        return (line if line.endswith("\n") else f"{line}\n" for line in lines)


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    **scheduler_params: object,
) -> Runner:
    """Return a runner over every installed scheduler; use it as a context manager, or close it."""
    return Runner(name or SESSION, None, component_defaults, scheduler_params)
