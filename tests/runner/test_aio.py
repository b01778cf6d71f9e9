"""The runner's twin for asyncio."""

from __future__ import annotations

import asyncio
import inspect

from holdfast.runner import AsyncRunner, Runner
from holdfast.specs import AppState
from tests.runner.conftest import app


def test_jobs_are_run_and_read_without_holding_the_loop_up(runner: Runner) -> None:
    async def story() -> tuple[AppState, list[str]]:
        async with AsyncRunner(runner) as twin:
            handle = await twin.run(app("echo a; echo b"), "memory")
            status = await twin.wait(handle)
            return status.state, [line async for line in twin.log_lines(handle, "role0")]

    assert asyncio.run(story()) == (AppState.SUCCEEDED, ["a", "b"])


def test_two_jobs_are_waited_for_at_once(runner: Runner) -> None:
    async def story() -> list[AppState]:
        twin = AsyncRunner(runner)
        handles = [await twin.run(app("sleep 1000"), "memory") for _ in range(2)]
        waits = [asyncio.create_task(twin.wait(handle)) for handle in handles]
        for handle in handles:
            await twin.cancel(handle)
        return [status.state for status in await asyncio.gather(*waits)]

    assert asyncio.run(story()) == [AppState.CANCELLED] * 2


def test_it_has_every_method_of_the_runner() -> None:
    for name, method in inspect.getmembers(Runner, inspect.isfunction):
        if not name.startswith("_"):
            twin = getattr(AsyncRunner, name)
            assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
            assert twin.__doc__
            assert method.__doc__
