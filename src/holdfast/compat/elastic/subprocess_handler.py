"""TorchElastic's `subprocess_handler`: one program as a process in a session of its own.

Our own agent starts workers through a gang, which knows of their ends and of what they have started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

from holdfast.workers.numa import NumaOptions, bind


class SubprocessHandler:
    """Starts a program at once; its output goes to the files that are named, or where ours goes."""

    def __init__(
        self,
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: NumaOptions | None,
    ) -> None:
        self._stdout = _open(stdout)
        self._stderr = _open(stderr)
        self.local_rank_id = local_rank_id
        cpus = bind(numa_options, local_rank_id + 1).get(local_rank_id) if numa_options is not None else None

        def prepare() -> None:
            if cpus:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, cpus)

        self.proc = subprocess.Popen(
            [entrypoint, *map(str, args)],
            env={**os.environ, **env},
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            preexec_fn=prepare if cpus else None,
        )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the program and what it has started, and close its files; the caller waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
        for file in (self._stdout, self._stderr):
            if file is not None:
                file.close()


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: dict[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: NumaOptions | None = None,
) -> SubprocessHandler:
    """Start a program."""
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)


def _open(path: str | None) -> IO[bytes] | None:
    return Path(path).open("wb") if path else None
