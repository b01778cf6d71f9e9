"""The runner for programs that use asyncio: each call runs in a thread, so the loop is never blocked."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.runner.api import Runner, get_runner

T = TypeVar("T")

_END = object()


class AsyncRunner:
    """The asynchronous `Runner`: the same methods with the same arguments, to be awaited.

    `log_lines` and `read_log` are to be iterated with `async for`.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner = runner if runner is not None else get_runner()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]: ...

    async def log_lines(self, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        """Yield the lines that one replica wrote; arguments as for `Runner.log_lines`."""
        async for line in _each(self.runner.log_lines, *args, **kwargs):
            yield line

    async def read_log(self, *args: Any, **kwargs: Any) -> AsyncIterator[tuple[float, str]]:
        """Yield the lines of one replica with their times; arguments as for `Runner.read_log`."""
        async for entry in _each(self.runner.read_log, *args, **kwargs):
            yield entry

    async def __aenter__(self) -> AsyncRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _each(method: Callable[..., Iterable[T]], *args: Any, **kwargs: Any) -> AsyncIterator[T]:
    """Iterate over a method's results, each in a thread."""
    pieces = iter(await asyncio.to_thread(method, *args, **kwargs))
    while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
        yield cast("T", piece)


def _in_a_thread(name: str, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: AsyncRunner, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.runner, name), *args, **kwargs)

    return call


for _name, _method in inspect.getmembers(Runner, inspect.isfunction):
    if not _name.startswith("_") and not hasattr(AsyncRunner, _name):
        setattr(AsyncRunner, _name, _in_a_thread(_name, _method))
