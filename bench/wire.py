"""The wire: what it costs that every frame carries an authentication code.

    python -m bench.wire              a table
    python -m bench.wire --repeats 20 fewer turns
    python -m bench.wire --hashes     as it is where the package cryptography is not installed: no GMAC for long frames

The same code runs twice, once as it is and once with codes that are neither computed nor checked; each has a server and
a client process of its own, on a core each where there are two. They take turns in short blocks. A figure is the median
of all blocks; rows "undisturbed" are the median of the fastest tenth, which other work on the machine disturbed least.
Rows "CPU" are the processor time of client and server together, in which waiting for each other does not count. Each
connection has carried some megabytes in both directions before, as one that is worth measuring has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.harness import Case, Results, median, save

REPEATS, REPEATS_FULL = 200, 600
SECRET = b"the secret of this bench"
KEYS = 100
VALUE = b"v" * 64
LARGE = b"x" * 1_000_000
#: Operations in one block.
COUNTS = {"get": 50, "add": 50, "multi_get": 20, "multi_set": 20, "set of 1 MB": 3, "get of 1 MB": 3}
#: How often a large value goes each way before anything is measured.
WARM_UP = 20
SEALED, BARE, HASHED = "sealed", "bare", "hashed"
#: A round trip of a small message may cost this much more.
SMALL_PERCENT_MAX = 10.0
PROMISED = ("get, undisturbed", "add, undisturbed")


def leave_codes_out() -> None:
    """Have this process send empty codes and believe every one."""
    from holdfast.wire.session import MAC_BYTES, Seal

    empty = bytes(MAC_BYTES)
    Seal.mac = lambda self, frame: empty  # type: ignore[method-assign]  # noqa: ARG005
    Seal.check = lambda self, frame, mac: None  # type: ignore[method-assign]  # noqa: ARG005


def leave_gmac_out() -> None:
    """Have this process believe that the package cryptography is not installed."""
    from holdfast.wire import gmac

    gmac._is_installed = lambda: False  # type: ignore[assignment]


# -- the processes of one variant ------------------------------------------------------------------------------


def serve() -> None:
    """Be a store server until standard input ends."""
    from holdfast.testing.store_server import StoreServer

    with StoreServer(secret=SECRET) as server:
        print(server.endpoint.port, flush=True)
        sys.stdin.read()


def ask(port: int, server: int) -> None:
    """Measure a block for each operation that standard input names; answer with wall and processor seconds."""
    from holdfast.store import StoreClient

    store = StoreClient.connect(f"127.0.0.1:{port}", "bench/1", secret=SECRET)
    keys, values = [f"key/{number}" for number in range(KEYS)], [VALUE] * KEYS
    store.multi_set(keys, values)
    table: dict[str, Callable[[], Any]] = {
        "get": lambda: store.get("key/7"),
        "add": lambda: store.add("count", 1),
        "multi_get": lambda: store.multi_get(keys),
        "multi_set": lambda: store.multi_set(keys, values),
        "set of 1 MB": lambda: store.set("large", LARGE),
        "get of 1 MB": lambda: store.get("large"),
    }
    for _ in range(WARM_UP):
        table["set of 1 MB"]()
        table["get of 1 MB"]()
    watched = psutil.Process(server)
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        operation = table[name]
        cpu, start = cpu_s(watched), time.perf_counter()
        for _ in range(COUNTS[name]):
            operation()
        print(time.perf_counter() - start, cpu_s(watched) - cpu, flush=True)


def cpu_s(server: psutil.Process) -> float:
    """Return the processor time of this process and the server."""
    times = server.cpu_times()
    return time.process_time() + float(times.user + times.system)


# -- the run ---------------------------------------------------------------------------------------------------


class Variant:
    """A server and a client, sealed or bare."""

    def __init__(self, name: str) -> None:
        self._server, port = start("--serve", name)
        self._client, _ = start("--ask", name, port, str(self._server.pid))
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            for process, core in ((self._client, cores[0]), (self._server, cores[1])):
                for task in Path(f"/proc/{process.pid}/task").iterdir():
                    os.sched_setaffinity(int(task.name), {core})

    def block(self, operation: str) -> tuple[float, float]:
        """Return wall and processor microseconds of one operation, measured over a block of them."""
        assert self._client.stdin
        assert self._client.stdout
        self._client.stdin.write(f"{operation}\n")
        self._client.stdin.flush()
        wall, cpu = (float(text) for text in self._client.stdout.readline().split())
        return 1e6 * wall / COUNTS[operation], 1e6 * cpu / COUNTS[operation]

    def close(self) -> None:
        """End both processes."""
        for process in (self._client, self._server):
            process.kill()
            process.communicate()


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process of this module; returns it and the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.wire", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


def run(full: bool) -> Results:
    """Measure every operation with and without codes."""
    return measure(REPEATS_FULL if full else REPEATS)


def measure(repeats: int, sealed: str = SEALED) -> Results:
    """Take turns; the first block of each warms up and is not counted."""
    variants = {SEALED: Variant(sealed), BARE: Variant(BARE)}
    try:
        blocks: dict[str, dict[str, list[tuple[float, float]]]] = {
            operation: {SEALED: [], BARE: []} for operation in COUNTS
        }
        for repeat in range(repeats + 1):
            for operation in COUNTS:
                for name in (SEALED, BARE) if repeat % 2 else (BARE, SEALED):
                    block = variants[name].block(operation)
                    if repeat:
                        blocks[operation][name].append(block)
    finally:
        for variant in variants.values():
            variant.close()
    cases = [case for operation, taken in blocks.items() for case in cases_of(operation, taken)]
    return Results("authenticated frames beside frames without codes", cases, rival="without")


def cases_of(operation: str, taken: dict[str, list[tuple[float, float]]]) -> list[Case]:
    """Return the rows of one operation."""
    walls = {name: [wall for wall, _ in blocks] for name, blocks in taken.items()}
    # The server's clock ticks too rarely for single blocks.
    cpus = {name: sum(cpu for _, cpu in blocks) / len(blocks) for name, blocks in taken.items()}
    rows = {
        operation: {name: median(blocks) for name, blocks in walls.items()},
        f"{operation}, undisturbed": {name: fastest(blocks) for name, blocks in walls.items()},
        f"{operation}, CPU": cpus,
    }
    return [case_of(row, by[SEALED], by[BARE]) for row, by in rows.items()]


def case_of(row: str, sealed: float, bare: float) -> Case:
    """Return one row, with how much more the codes cost."""
    percent = 100 * (sealed / bare - 1)
    promised = row in PROMISED
    return Case(
        row,
        sealed,
        "µs",
        bare,
        f"≤ {SMALL_PERCENT_MAX:g} % more" if promised else "",
        percent <= SMALL_PERCENT_MAX if promised else None,
        note=f"{percent:+.1f} %",
    )


def fastest(blocks: list[float]) -> float:
    """Return the median of the fastest tenth."""
    return median(sorted(blocks)[: max(len(blocks) // 10, 1)])


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire", description=__doc__.splitlines()[0])
    parser.add_argument("--serve", choices=(SEALED, BARE, HASHED), help=argparse.SUPPRESS)
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--hashes", action="store_true", help="with the hashes of the standard library alone")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    variant = options.serve or (options.ask or [""])[0]
    if variant == BARE:
        leave_codes_out()
    elif variant == HASHED:
        leave_gmac_out()
    if options.serve:
        serve()
        return 0
    if options.ask:
        ask(int(options.ask[1]), int(options.ask[2]))
        return 0
    results = measure(options.repeats, HASHED if options.hashes else SEALED)
    print(results)
    if options.json:
        save(options.json, {"wire": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
