"""What the tests of events share: a clean process, facts that are heard, plugins that are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import events, plugins
from holdfast.events import Event, EventHandler, NullEventHandler
from holdfast.events.recording import _destinations
from holdfast.facts import Fact, facts


class Collecting(EventHandler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def record(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing configured, registered or opened."""
    yield
    events.configure(NullEventHandler())
    events.close_all()
    _destinations._registered.clear()
    _destinations.forget()


@pytest.fixture
def collecting() -> Collecting:
    return Collecting()


@pytest.fixture
def heard() -> Iterator[list[Fact]]:
    """The facts that are published during the test."""
    kept: list[Fact] = []
    stop = facts.listen(kept.append)
    yield kept
    stop()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Installs a distribution with handlers: `install(entry_points, module)`."""

    def put(points: str, module: str) -> None:
        info = tmp_path / "sample_events-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-events\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[holdfast.events]\n{points}\n")
        (tmp_path / "sample_events.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        plugins.forget()

    yield put
    plugins.forget()
