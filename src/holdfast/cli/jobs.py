"""Shared by the commands about jobs: a runner, the status of a job, and shell completion."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.levels import log_level
from holdfast.errors import HoldfastError

# Imported late: each function serves one command or two.
if TYPE_CHECKING:
    from holdfast.runner.api import Runner
    from holdfast.schedulers import ListAppResponse
    from holdfast.specs import AppStatus


def prepare() -> None:
    """Prepare to load plugins: programs written for TorchX find our modules if it is not installed."""
    from holdfast.compat import torchx_where_missing

    logging.basicConfig(format="holdfast: %(message)s", level=log_level("WARNING"), stream=sys.stderr)
    torchx_where_missing()


@contextmanager
def open_runner() -> Iterator[Runner]:
    """Open a runner with every installed scheduler, and close it at the end."""
    from holdfast.runner.api import get_runner

    prepare()
    with get_runner() as runner:
        yield runner


def known_status(runner: Runner, handle: str) -> AppStatus:
    """Return the status of a job; raises `UnknownAppError`."""
    status = runner.status(handle)
    if status is None:
        from holdfast.specs import UnknownAppError

        raise UnknownAppError(handle)
    return status


def list_quietly(runner: Runner, scheduler: str) -> list[ListAppResponse]:
    """List the jobs of a scheduler; one that cannot list, or cannot be reached, has none."""
    try:
        return runner.list(scheduler)
    except Exception as error:  # noqa: BLE001 - a plugin's scheduler may raise anything; the others are still listed
        logging.getLogger("holdfast").info("the scheduler '%s' cannot list jobs: %s", scheduler, error)
        return []


def default_scheduler() -> str:
    """Return the scheduler that is used if none is named."""
    from holdfast.runner import config
    from holdfast.schedulers import get_default_scheduler_name

    return str(config.load().values("cli", "run").get("scheduler") or get_default_scheduler_name())


def schedulers_default_first(runner: Runner) -> list[str]:
    """Return the names of all schedulers, the default one first."""
    first = default_scheduler()
    return [first, *(name for name in runner.scheduler_backends() if name != first)]


# -- what a shell completes ----------------------------------------------------------------------------------------


def complete_handles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the ids of jobs."""
    del ctx, param
    found: list[str] = []
    with _in_silence(), open_runner() as runner:
        found += [job.app_id for job in list_quietly(runner, default_scheduler())]
    return [name for name in found if name.startswith(incomplete)]


def complete_schedulers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of schedulers."""
    del ctx, param
    from holdfast.schedulers import get_scheduler_factories

    return [name for name in get_scheduler_factories() if name.startswith(incomplete)]


def complete_components(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the names of components, or files if no component begins like this."""
    from click.shell_completion import CompletionItem

    found: list[str] = []
    if not ctx.params.get(param.name or ""):  # else these are the component's own arguments
        with _in_silence():
            prepare()
            from holdfast.components.finder import get_components

            found += get_components()
    names = [CompletionItem(name) for name in found if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


@contextmanager
def _in_silence() -> Iterator[None]:
    """Print neither warnings nor errors: the user is typing."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    except HoldfastError:
        pass  # there is nothing to offer
    finally:
        logging.disable(before)
