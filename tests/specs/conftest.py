"""Installed packages that bring named resources, made of real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import plugins
from holdfast.facts import Fact, facts
from holdfast.specs import named_resources

Install = Callable[[str, str], None]


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """Everything that was told meanwhile."""
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    yield heard
    stop()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution `sample` with these entry points and this module `sample_resources`."""

    def install(entry_points: str, module: str) -> None:
        info = tmp_path / "sample-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        (tmp_path / f"{tmp_path.name}_resources.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        plugins.forget()
        named_resources.reset()

    yield install
    monkeypatch.undo()
    plugins.forget()
    named_resources.reset()


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """What a test registers is forgotten with it."""
    yield
    named_resources.reset()
