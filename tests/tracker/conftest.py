"""A run whose environment is the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.tracker.api import AppRun


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TORCHX_TRACKERS", "TORCHX_JOB_ID", "TORCHX_PARENT_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    AppRun.run_from_env.cache_clear()  # type: ignore[attr-defined]
    yield
    AppRun.run_from_env.cache_clear()  # type: ignore[attr-defined]
