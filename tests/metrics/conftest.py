"""What the tests of metrics share: no choice of one test reaches another, and receivers that are real."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast import metrics, plugins
from holdfast.facts import Fact, facts
from holdfast.metrics import api, source
from holdfast.metrics.chosen import Metrics

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


class Remembering(metrics.MetricHandler):
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.taken: list[metrics.MetricData] = []

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.taken.append(metric_data)

    @property
    def values(self) -> list[tuple[str, str, float]]:
        return [(data.group_name, data.name, data.value) for data in self.taken]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is configured when a test begins, and its sinks are closed when it ends."""
    monkeypatch.setattr(api, "_routes", api._Routes({}, None, None))
    monkeypatch.setattr(source, "_announced", None)
    for name in ("RANK", source.METRICS_VARIABLE, source.SOCKET_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield
    launch = api.installed()
    if isinstance(launch, Metrics):
        launch.close(PATIENCE_S)


@pytest.fixture
def heard() -> Iterator[list[Fact]]:
    """Every fact of the test."""
    found: list[Fact] = []
    stop = facts.listen(found.append)
    yield found
    stop()


@pytest.fixture
def install_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, dict[str, str]], Path]]:
    """Install a real distribution: a module's text, and its entry points in our group by name."""

    def install(code: str, points: dict[str, str]) -> Path:
        folder = tmp_path / "site"
        info = folder / "foreign-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[holdfast.metrics]", *lines]))
        (folder / "foreign_metrics.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "foreign_metrics", raising=False)
        plugins.forget()
        return folder

    yield install
    sys.modules.pop("foreign_metrics", None)
    plugins.forget()


@pytest.fixture
def run_worker(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program as an agent would, with these variables laid over the environment."""

    def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(code))
        return subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            env={**os.environ, **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


class Receiver:
    """A small HTTP server that keeps what is posted to it, and answers GET with what `page` returns."""

    def __init__(self) -> None:
        receiver = self
        self.posted: list[tuple[str, bytes]] = []
        self.arrived = threading.Semaphore(0)
        self.status = 200
        self.page: Callable[[], tuple[str, bytes]] = lambda: ("text/plain", b"")

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posted.append((self.path, body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                receiver.arrived.release()

            def do_GET(self) -> None:
                kind, body = receiver.page()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()
