"""A timer server in a process of its own, ours or torch's: `python -m bench._timers {ours,torch} PATH`.

It says when it is ready, and ends when its stdin does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

#: How often torch's server, which is not told of requests, looks for them.
LOOK_S = 0.02


@contextlib.contextmanager
def served(whose: str, path: str) -> Iterator[None]:
    """Run a server for as long as the context lasts."""
    command = [sys.executable, "-m", "bench._timers", whose, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the timer server of {whose} did not start")
            yield
        finally:
            process.stdin.close()


def main(whose: str, path: str) -> None:
    """Serve until stdin ends."""
    server: Any
    if whose == "torch":
        from torch.distributed.elastic.timer import FileTimerServer as Theirs

        server = Theirs(path, "bench", max_interval=LOOK_S)
    else:
        from holdfast.timer import FileTimerServer

        server = FileTimerServer(path, "bench", admits=lambda _pid: True)
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
