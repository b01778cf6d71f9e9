"""The page of the demo: `holdfast page` as a process of its own, with kills allowed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec

#: What the page needs; see the extra `[page]`.
NEEDED = ("starlette", "uvicorn")


def can_be_served() -> bool:
    """Whether the page's packages are installed."""
    return all(find_spec(name) is not None for name in NEEDED)


class DemoPage:
    """Serves the runs of the demo's own home until it is closed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "page", "--allow-kill", "--until-eof"],
            env=dict(environ),
            stdin=subprocess.PIPE,  # its end, with ours, ends the page
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self._in = self._process.stdin

    def fileno(self) -> int:
        """What becomes readable once the link is known."""
        return self._out.fileno()

    def read_link(self) -> str:
        """Return the link, which is the first line; empty where the page did not start."""
        return self._out.readline().decode(errors="replace").strip()

    def close(self) -> None:
        """End the page."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        if self._in is not None:
            self._in.close()
