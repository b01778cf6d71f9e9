"""From an app to a job and back: dry runs, submission, status, logs, the end; config files; workspaces.

with get_runner() as runner:
    handle = runner.run_component("utils.echo", ["--msg", "hello"], "local")
    print(runner.wait(handle))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.runner.aio import AsyncRunner as AsyncRunner
    from holdfast.runner.api import Runner as Runner
    from holdfast.runner.api import get_runner as get_runner
    from holdfast.runner.api import run as run
else:
    # A scheduler that only ships a workspace does not import the rest.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        aio="AsyncRunner",
        api="Runner get_runner run",
    )
