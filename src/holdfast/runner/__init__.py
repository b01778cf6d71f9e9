"""From an app to a job and back: dry runs, submission, status, logs, the end; config files; workspaces.

with get_runner() as runner:
    handle = runner.run_component("utils.echo", ["--msg", "hello"], "local")
    print(runner.wait(handle))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobTimeoutError

if TYPE_CHECKING:
    from holdfast.runner.aio import AsyncRunner
    from holdfast.runner.api import Runner, get_runner, run

#: Each name and where it lives: a scheduler that only ships a workspace should not pay for the rest.
_HOMES = {
    "AsyncRunner": "aio",
    "Runner": "api",
    "get_runner": "api",
    "run": "api",
}

__all__ = ["AsyncRunner", "JobTimeoutError", "Runner", "get_runner", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
