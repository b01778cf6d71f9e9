"""A runner over jobs that live in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.runner import Runner
from holdfast.specs import AppDef, Role
from holdfast.testing.memory_scheduler import MemoryCluster, MemoryScheduler


def app(*commands: str, name: str = "app", **fields: Any) -> AppDef:
    """An app with one role for each shell command."""
    roles = [
        Role(name=f"role{number}", image="", entrypoint="sh", args=["-c", text], **fields)
        for number, text in enumerate(commands or ("echo hello",))
    ]
    return AppDef(name, roles)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def runner(cluster: MemoryCluster) -> Iterator[Runner]:
    factories = {"memory": lambda session_name, **kwargs: MemoryScheduler(session_name, cluster)}
    with Runner("here", factories) as runner:
        yield runner
