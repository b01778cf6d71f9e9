"""A flood: connections that prove nothing, on the port of a job that `holdfast launch` runs.

    python -m bench.flood                                     100,000 garbage and 5,000 silent connections
    python -m bench.flood --garbage 2000 --silent 300         fewer

First garbage: each connection sends something that is not the handshake, or half of one, or nothing, and goes. The job
must notice nothing, and log and journal must stay short. Then silence: connections that are held open and say
nothing, more than the user's limit on open files. With all of them there a worker is killed, and the job must start it
again. Loopback only; every wait has a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from bench._mill import FOREIGN, frame
from bench.harness import Case, Results, raise_file_limit, save
from holdfast.wire.ports import HeldPort

GARBAGE, GARBAGE_FULL = 100_000, 200_000
SILENT = 5_000
SENDERS = 4
SEED = 20_241
PATIENCE_S = 120.0
#: What a hundred thousand refusals may leave in the log, and as many in the journal.
LINES_MAX = 200
WORKERS = 2
#: Each closed connection keeps its pair of ports for a minute; a whole network of addresses does not run out.
ADDRESSES = 250
_GONE_AT_ONCE = struct.pack("ii", 1, 0)

SCRIPT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"pid-{os.environ['RANK']}-{attempt}").write_text(str(os.getpid()))
while not (folder / "stop").exists():
    time.sleep(0.05)
"""


class Launched:
    """A job of one node on a port of this machine, from entering the context to leaving it.

    `files_max` is the hard limit on open files that it gets; the soft one stays below 1,024 as on most systems.
    """

    def __init__(self, files_max: int | None = None) -> None:
        self._files_max = files_max
        self._temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-")
        self.folder = Path(self._temporary.name)
        self.log_path = self.folder / "log"

    def __enter__(self) -> Launched:
        held = HeldPort()
        self.address = ("127.0.0.1", held.port)
        script = self.folder / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "holdfast", "launch", "--json", "--nproc-per-node", str(WORKERS)]
        command += ["--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{held.port}", "--rdzv-id", "flooded"]
        command += ["--max-restarts", "3", "--log-dir", str(self.folder / "logs"), str(script), str(self.folder)]
        limit = "ulimit -S -n 1024" if self._files_max is None else f"ulimit -n {self._files_max}"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f'{limit}; exec "$@"', "sh", *command],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "HOLDFAST_HOME": str(self.folder / "home")},
            )
        try:
            wait_for(lambda: len(self.pids(0)) == WORKERS, "the job did not start")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        finally:
            held.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.folder / "stop").touch()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
        self._temporary.cleanup()

    def pids(self, attempt: int) -> dict[int, int]:
        """Return the workers that have begun an attempt: process ids by rank."""
        found = {rank: self.folder / f"pid-{rank}-{attempt}" for rank in range(WORKERS)}
        return {rank: int(path.read_text()) for rank, path in found.items() if path.exists() and path.read_text()}

    def end(self) -> int:
        """Let the workers finish and return the exit code of the launch."""
        (self.folder / "stop").touch()
        return self.process.wait(PATIENCE_S)

    def facts(self, *kinds: str) -> int:
        """Count the facts of these kinds that were told on the screen."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return sum(json.loads(line)["kind"] in kinds for line in lines if line.startswith("{"))

    def log_lines(self) -> int:
        """Count the lines of the log."""
        return len(self.log_path.read_text(errors="replace").splitlines())

    def journal_lines(self) -> int:
        """Count the lines of the journals, which name how the run went."""
        return sum(len(path.read_text().splitlines()) for path in (self.folder / "logs").rglob("journal.jsonl"))

    def connections(self) -> int:
        """Return how many files and sockets the agent holds open."""
        return int(psutil.Process(self.process.pid).num_fds())


def wait_for(condition: Callable[[], bool], complaint: str) -> None:
    """Wait until a condition holds; raises once patience is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(0.02)


# -- garbage ---------------------------------------------------------------------------------------------------


def piece(chance: random.Random) -> bytes:
    """Return what one connection sends."""
    kind = chance.randrange(5)
    if kind == 0:
        return b""
    if kind == 1:
        return chance.choice(FOREIGN)
    if kind == 2:
        return frame(chance.randbytes(100))[: chance.randrange(1, 108)]
    if kind == 3:
        return frame(chance.randbytes(60), version=chance.choice((0, 1, 3, 255)))
    return chance.randbytes(chance.randrange(1, 200))


def send_garbage(address: tuple[str, int], count: int, seed: int) -> None:
    """Open so many connections, one after the other, with a piece of garbage on each."""
    chance = random.Random(seed)
    for number in range(count):
        source = f"127.1.{chance.randrange(ADDRESSES) if number % 2 else 0}.1"
        with socket.socket() as sock:
            sock.settimeout(PATIENCE_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _GONE_AT_ONCE)
            sock.bind((source, 0))
            sock.connect(address)
            try:
                if data := piece(chance):
                    sock.sendall(data)
                    if number % 3:
                        sock.recv(4096)  # the challenge, and perhaps the refusal
            except OSError:
                pass  # the coordinator was faster


def send_all(address: tuple[str, int], count: int, seed: int = SEED) -> None:
    """Send garbage from several threads."""
    errors: list[BaseException] = []

    def send(number: int) -> None:
        try:
            send_garbage(address, count // SENDERS, seed + number)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError("the coordinator stopped answering") from errors[0]


def garbage_cases(count: int) -> list[Case]:
    """Return what garbage does to a job."""
    with Launched() as job:
        start = time.perf_counter()
        send_all(job.address, count)
        seconds = time.perf_counter() - start
        rounds, attempts = job.facts("round_sealed"), job.pids(1)
        exit_code = job.end()
        return [
            Case.seen("garbage connections", count, "", f"in {seconds:.0f} s"),
            Case.at_most(
                "log lines", job.log_lines(), "", LINES_MAX - 1, f"{job.facts('connection_refused')} refusals"
            ),
            Case.at_most("journal entries", job.journal_lines(), "", LINES_MAX - 1),
            Case.at_most("things that the job noticed", abs(rounds - 1) + len(attempts) + abs(exit_code), "", 0),
        ]


# -- silence ---------------------------------------------------------------------------------------------------


def hold_open(address: tuple[str, int], count: int) -> list[socket.socket]:
    """Open so many connections that say nothing; the coordinator may close them as it likes."""
    held = []
    for number in range(count):
        sock = socket.socket()
        sock.settimeout(PATIENCE_S)
        sock.bind((f"127.2.{number % ADDRESSES}.1", 0))
        sock.connect(address)
        held.append(sock)
    return held


def silence_cases(count: int, files_max: int | None = None) -> list[Case]:
    """Return whether a job survives the death of a worker while silent connections are held open."""
    with Launched(files_max) as job:
        idle = job.connections()
        held = hold_open(job.address, count)
        try:
            most = job.connections()
            os.kill(job.pids(0)[1], signal.SIGKILL)
            start = time.perf_counter()
            wait_for(lambda: len(job.pids(1)) == WORKERS, "the job did not recover from the death of a worker")
            seconds = time.perf_counter() - start
        finally:
            for sock in held:
                sock.close()
        exit_code = job.end()
        return [
            Case.seen("silent connections held open", count, "", f"the agent had {idle} files open, then {most}"),
            Case.seen("a worker killed meanwhile: until all run again", seconds, "s"),
            Case.at_most("exit code of the job", exit_code, "", 0),
            Case.at_most("log lines", job.log_lines(), "", LINES_MAX - 1),
        ]


# -- both ------------------------------------------------------------------------------------------------------


def run(full: bool) -> Results:
    """Flood with the usual numbers."""
    return flood(GARBAGE_FULL if full else GARBAGE, SILENT)


def flood(garbage: int, silent: int) -> Results:
    """Send both floods, each to a job of its own."""
    return Results("a flood on the port of a job", [*garbage_cases(garbage), *silence_cases(silent)])


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.flood", description=__doc__.splitlines()[0])
    parser.add_argument("--garbage", type=int, default=GARBAGE, help="how many (default: %(default)s)")
    parser.add_argument("--silent", type=int, default=SILENT, help="how many (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    raise_file_limit()
    results = flood(options.garbage, options.silent)
    print(results)
    if options.json:
        save(options.json, {"flood": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
