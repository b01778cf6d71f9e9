"""Facts that are published, and real processes that save and are killed in the middle of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.facts import Fact, facts

PATIENCE_S = 240.0


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """Every fact that is published during the test."""
    found: list[Fact] = []
    stop = facts.listen(found.append)
    yield found
    stop()


class Child:
    """A Python process that runs some code and says things line by line."""

    def __init__(self, code: str, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self, *, expect: str | None = None) -> str:
        """Wait for the next line; fails where the process ends instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"the child ended with {self.process.wait(PATIENCE_S)}"
        assert expect is None or line == expect
        return line

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """Let it come to its end and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Start processes that are gone at the end of the test."""
    children: list[Child] = []

    def start(code: str, *args: Any) -> Child:
        children.append(Child(code, *args))
        return children[-1]

    yield start
    for each in children:
        each.close()
