"""Health under load: how soon /healthz answers while eight workers flood the agent with output.

    python -m bench.health_probe            2,000 probes, a table
    python -m bench.health_probe --full     10,000

A real agent in a process of its own starts eight workers whose only work is to write lines, all of which it carries to
log files and to its console. Meanwhile a client probes as an orchestrator does: one connection for each probe, with a
pause between them. For comparison, a plain HTTP server runs in a thread of the same agent, as in most extensions of
TorchElastic's stub.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.harness import Case, Results

WORKERS = 8
PROBES, PROBES_FULL = 2000, 10_000
PAUSE_S = 0.005
TARGET_MS = 5.0
TIMEOUT_S = 60.0
PATIENCE_S = 60.0
#: What is kept of each worker's log: the flood is meant for the agent, not for the disk.
LOG_BYTES_MAX = 4 * 1024 * 1024
QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

FLOOD = """
import sys
lines = "".join(f"step {n} loss 0.123456 and then some more text as loggers write it\\n" for n in range(200))
while True:
    sys.stdout.write(lines)
    sys.stdout.flush()
"""


def health_probes(full: bool) -> list[Case]:
    """Start the flood, probe both servers, and say how long they took; a part of `python -m bench observe`."""
    probes = PROBES_FULL if full else PROBES
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, Flooded(Path(folder)) as flooded:
        before = flooded.carried_bytes()
        start = time.perf_counter()
        ours = probe(flooded.port, probes)
        carried = (flooded.carried_bytes() - before) / (time.perf_counter() - start)
        thread = probe(flooded.thread_port, min(probes, 500))
        rss = psutil.Process(flooded.server_process).memory_info().rss / 1e6
        flooded.stop_agent()
        stopped = probe(flooded.port, min(probes, 200))
    share = f"{probes:,} probes, {WORKERS} workers, {carried / 1e6:.0f} MB/s of output carried"
    return [
        Case.at_most("/healthz, 99th percentile", percentile(ours, 99), "ms", TARGET_MS, share),
        Case.seen("... median", percentile(ours, 50), "ms", f"at worst {max(ours):.3g} ms"),
        Case.seen("from a thread of the agent instead, 99th percentile", percentile(thread, 99), "ms"),
        Case.seen("... median", percentile(thread, 50), "ms", f"at worst {max(thread):.3g} ms"),
        Case.seen("agent stopped (SIGSTOP), 99th percentile", percentile(stopped, 99), "ms", "a thread never answers"),
        Case.seen("memory of the server's process", rss, "MB"),
    ]


def probe(port: int, probes: int) -> list[float]:
    """Ask so many times, each on a connection of its own; returns milliseconds."""
    times = []
    for _ in range(probes):
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            sock.sendall(QUESTION)
            answer = b""
            while data := sock.recv(4096):
                answer += data
        times.append(1000 * (time.perf_counter() - start))
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(f"the agent counts as dead: {answer!r}")
    return times


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Flooded:
    """An agent in a process of its own whose workers flood it, from entering the context to leaving it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Flooded:
        script = self._folder / "flood.py"
        script.write_text(FLOOD)
        # Its console is a pipe to `cat`, which reads the agent's output as a terminal would.
        self._sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "bench.health_probe", "--agent", str(self._folder)],
            stdout=self._sink.stdin,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._agent.stderr
        line = self._agent.stderr.readline()
        if not line.startswith("{"):
            rest = self._agent.stderr.read()
            self.__exit__()
            raise RuntimeError(f"the agent did not start: {line}{rest}")
        told = json.loads(line)
        self.port, self.thread_port, self.server_process = told["port"], told["thread_port"], told["process"]
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.send_signal(signal.SIGCONT)
        self._agent.kill()  # its workers and our server end with it
        self._agent.wait()
        assert self._agent.stderr
        assert self._sink.stdin
        self._agent.stderr.close()
        self._sink.stdin.close()
        self._sink.wait()

    def carried_bytes(self) -> int:
        """Return how much the agent has written to its console so far."""
        return psutil.Process(self._sink.pid).io_counters().read_chars

    def stop_agent(self) -> None:
        """Stop the agent's process, as a hang in the kernel would."""
        self._agent.send_signal(signal.SIGSTOP)


def be_agent(folder: Path) -> None:
    """Run the flooded job here, with both servers beside it, and tell where they are once all workers write."""
    from holdfast.agent.options import LocalOptions
    from holdfast.health import HealthCheckServer, LastProgress
    from holdfast.launcher import LaunchConfig
    from holdfast.launcher.api import run_agent
    from holdfast.workers import DefaultLogsSpecs, Script, Std

    pulse = LastProgress()
    server = HealthCheckServer(pulse, 0, TIMEOUT_S)
    beside = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ThreadHandler)
    threading.Thread(target=beside.serve_forever, daemon=True).start()
    logs = DefaultLogsSpecs(str(folder / "logs"), Std.NONE, Std.ALL)

    def tell() -> None:
        while len(list((folder / "logs").rglob("stdout.log"))) < WORKERS:
            time.sleep(0.05)
        told = {"port": server.port, "thread_port": beside.server_port, "process": process_pid()}
        print(json.dumps(told), file=sys.stderr, flush=True)

    with server:
        threading.Thread(target=tell, daemon=True).start()
        config = LaunchConfig(
            1,
            1,
            WORKERS,
            logs_specs=logs,
            rdzv_backend="static",
            run_id="flood",
            shutdown_timeout=2,
            local_options=LocalOptions(log_bytes_max=LOG_BYTES_MAX),
        )
        run_agent(config, Script(str(folder / "flood.py")), [])


def process_pid() -> int:
    """Find the process that serves our health port."""
    children = psutil.Process(os.getpid()).children()
    return next(each.pid for each in children if any("health_process.py" in word for word in each.cmdline()))


class _ThreadHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        del format, args


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--agent", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent is not None:
        be_agent(options.agent)
    else:
        print(Results("health probes while the logs are flooded", health_probes(options.full)))
