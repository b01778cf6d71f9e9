"""The runner for programs that use asyncio: each call runs in a thread, so the loop is never held up."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.runner.api import Runner, get_runner

_END = object()


class AsyncRunner:
    """The twin of `Runner`: the same methods with the same arguments, to be awaited.

    `log_lines` is to be iterated with `async for`.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner = runner if runner is not None else get_runner()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]: ...

    async def log_lines(self, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        """Yield the lines that one replica wrote; arguments as for `Runner.log_lines`."""
        lines = iter(await asyncio.to_thread(self.runner.log_lines, *args, **kwargs))
        while (line := await asyncio.to_thread(next, lines, _END)) is not _END:
            yield str(line)

    async def __aenter__(self) -> AsyncRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _in_a_thread(name: str, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: AsyncRunner, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.runner, name), *args, **kwargs)

    return call


for _name, _method in inspect.getmembers(Runner, inspect.isfunction):
    if not _name.startswith("_") and not hasattr(AsyncRunner, _name):
        setattr(AsyncRunner, _name, _in_a_thread(_name, _method))
