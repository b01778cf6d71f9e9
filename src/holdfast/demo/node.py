"""One node of the demo: an agent in a process of its own, and the lines that it and its workers write."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from holdfast.demo.story import Event, Fitted, RoundBroke, Stepped
from holdfast.workers.linux import open_pidfd, set_parent_death_signal
from holdfast.workers.strays import descendants

READ_BYTES = 65536
#: Lines kept of what an agent or a worker wrote beside the expected, to explain a failure.
TAIL_LINES_MAX = 30

_WORD = re.compile(r"(\w+)=(\S+)")


class Node:
    """A started agent. `streams` and `pidfd` become readable when there is something to `read` or it has ended."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        # In a session of its own: a Ctrl-C in the terminal is ours to deal with, and the agent hears of it from us.
        # Should we be killed, so is the agent; the kernel sees to that, and the agent's own workers die with it.
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=set_parent_death_signal,
        )
        self.pidfd = open_pidfd(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.streams = (self._process.stdout.fileno(), self._process.stderr.fileno())
        self._rest = dict.fromkeys(self.streams, b"")
        for stream in self.streams:
            os.set_blocking(stream, False)

    def read(self, stream: int) -> tuple[list[Event], bool]:
        """Return what has been said on a stream, and whether it goes on."""
        data = b""
        goes_on = True
        try:
            while chunk := os.read(stream, READ_BYTES):
                data += chunk
            goes_on = False
        except BlockingIOError:
            pass
        *lines, self._rest[stream] = (self._rest[stream] + data).split(b"\n")
        return list(self._understand(lines)), goes_on

    def exit_code(self) -> int | None:
        """Return how the agent ended, or None while it runs; 128+n stands for a signal."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def kill(self) -> None:
        """SIGKILL the agent and all that it has started, as when the machine is gone."""
        pids = [self._process.pid, *descendants(self._process.pid)]
        if self._process.poll() is None:
            for pid in pids:
                kill(pid)

    def terminate(self) -> None:
        """Send SIGTERM to the agent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Release an agent that has ended."""
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self.pidfd)

    def _understand(self, lines: list[bytes]) -> Iterator[Event]:
        for line in lines:
            text = line.decode(errors="replace")
            event = parse(self.name, text)
            if event is not None:
                yield event
            elif not text.startswith("{"):
                self.tail.append(text)


def parse(node: str, line: str) -> Event | None:
    """Parse one line of a worker (`step=3 loss=0.5 ...`) or of an agent (a fact as JSON)."""
    try:
        if line.startswith("{"):
            fact = json.loads(line)
            if fact["kind"] == "round_broken":
                return RoundBroke(int(fact["data"]["round"]), fact["data"]["reason"])
            return None
        said = dict(_WORD.findall(line))
        if "finished" in said:
            return Fitted(int(said["finished"]), float(said["error"]), float(said["drift"]))
        if "step" in said:
            rank, world, number = int(said["rank"]), int(said["world"]), int(said["round"])
            return Stepped(node, rank, world, number, int(said["step"]), float(said["loss"]), int(said["pid"]))
    except (KeyError, ValueError, TypeError):
        pass  # another program's line, or half of one
    return None


def kill(pid: int) -> None:
    """SIGKILL a process that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
