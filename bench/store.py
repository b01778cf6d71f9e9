"""Our store beside torch's TCPStore: both servers in their own process, over loopback, in one run.

    python -m bench.store            a table
    python -m bench.store --json     the same as JSON

Every figure is the median of repeats, and the repeats of both stores take turns, so that a noisy neighbour hurts both.

torch's `set` and `multi_set` return before the server has seen anything; ours return once it is done. Their rounds end
with one question that is answered, so that all that was sent has arrived. The rows "known done" compare like with like:
there torch asks one question after each write, which is the only way for its caller to know.

Where the scheduler puts two processes that wait for each other moves these figures by a factor of two or three, and not
by the same one for both stores. So by default the client stays on one core and the servers on another, as if they were
on two hosts; `--placement together` puts them on one core, `--placement free` leaves it to the scheduler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness import Case, Results

if TYPE_CHECKING:
    from collections.abc import Callable

NEEDS = ("torch",)
KEYS = 100
VALUE = b"v" * 64
CLIENTS = 8
#: Operations in one repeat of one sequential client.
COUNTS = {
    "get": 3000,
    "add": 3000,
    "set": 3000,
    "set, known done": 3000,
    "multi_get": 600,
    "multi_set": 600,
    "multi_set, known done": 600,
    "multi_set + multi_get": 300,
}
CROWD_COUNTS = {"get": 1000, "add": 1000}


# -- servers and clients ------------------------------------------------------------------------------------


def serve_holdfast() -> None:
    from holdfast.testing.store_server import StoreServer

    with StoreServer() as server:
        print(server.endpoint.port, flush=True)
        sys.stdin.read()


def serve_torch() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


def connect(which: str, port: int) -> Any:
    if which == "torch":
        from torch.distributed import TCPStore

        return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    from holdfast.store import StoreClient

    return StoreClient.connect(f"127.0.0.1:{port}", "bench/1", secret=b"")


def operations(store: Any) -> dict[str, Callable[[int], object]]:
    keys = [f"key/{number}" for number in range(KEYS)]
    values = [VALUE] * KEYS
    answers_writes = type(store).__name__ != "TCPStore"
    store.multi_set(keys, values)

    def set_known(number: int) -> None:
        store.set(keys[number % KEYS], VALUE)
        if not answers_writes:
            store.check(keys[:1])

    def multi_set_known(_: int) -> None:
        store.multi_set(keys, values)
        if not answers_writes:
            store.check(keys[:1])

    def multi_set_get(_: int) -> None:
        store.multi_set(keys, values)
        store.multi_get(keys)

    return {
        "get": lambda number: store.get(keys[number % KEYS]),
        "add": lambda _: store.add("count", 1),
        "set": lambda number: store.set(keys[number % KEYS], VALUE),
        "set, known done": set_known,
        "multi_get": lambda _: store.multi_get(keys),
        "multi_set": lambda _: store.multi_set(keys, values),
        "multi_set, known done": multi_set_known,
        "multi_set + multi_get": multi_set_get,
    }


def timed(store: Any, operation: Callable[[int], object], count: int) -> float:
    """Return the seconds for `count` operations, all of them known to have arrived."""
    start = time.perf_counter()
    for number in range(count):
        operation(number)
    store.check(["key/0"])
    return time.perf_counter() - start


# -- the crowd: one process for each client -----------------------------------------------------------------


def be_client(which: str, port: int) -> None:
    """Serve one line of standard input after another: an operation and a count; answer with the seconds."""
    store = connect(which, port)
    table = operations(store)
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(timed(store, table[name], int(count)), flush=True)


def crowd_rate(clients: list[subprocess.Popen[str]], name: str, count: int) -> float:
    for client in clients:
        assert client.stdin
        client.stdin.write(f"{name} {count}\n")
        client.stdin.flush()
    seconds = [float(client.stdout.readline()) for client in clients]  # type: ignore[union-attr]
    return len(clients) * count / max(seconds)


# -- the run ------------------------------------------------------------------------------------------------


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.store", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


def place(placement: str, servers: list[subprocess.Popen[str]]) -> None:
    """Keep the client and the servers on their cores; does nothing where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if placement == "free" or len(cores) < 2:
        return
    for server in servers:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cores[0] if placement == "together" else cores[1]})
    os.sched_setaffinity(0, {cores[0]})


def measure(repeats: int, crowd: bool, placement: str) -> dict[str, dict[str, float]]:
    """Return operations a second, by row and store."""
    rates: dict[str, dict[str, list[float]]] = {}
    processes: list[subprocess.Popen[str]] = []
    try:
        ports = {}
        for which in ("holdfast", "torch"):
            server, port = start("--serve", which)
            processes.append(server)
            ports[which] = int(port)
        stores = {which: connect(which, port) for which, port in ports.items()}
        tables = {which: operations(store) for which, store in stores.items()}
        cores = os.sched_getaffinity(0)
        place(placement, processes)
        for repeat in range(repeats + 1):  # the first warms up and is not counted
            for name, count in COUNTS.items():
                order = list(stores) if repeat % 2 else list(reversed(stores))
                for which in order:
                    rate = count / timed(stores[which], tables[which][name], count)
                    if repeat:
                        rates.setdefault(name, {}).setdefault(which, []).append(rate)
        os.sched_setaffinity(0, cores)  # the crowd is placed by the scheduler
        if crowd:
            for server in processes:
                for task in Path(f"/proc/{server.pid}/task").iterdir():
                    os.sched_setaffinity(int(task.name), cores)
            clients = {}
            for which, port in ports.items():
                started = [start("--client", which, str(port))[0] for _ in range(CLIENTS)]
                processes.extend(started)
                clients[which] = started
            for repeat in range(repeats + 1):
                for name, count in CROWD_COUNTS.items():
                    for which in clients:
                        rate = crowd_rate(clients[which], name, count)
                        if repeat:
                            row = f"{name}, {CLIENTS} clients"
                            rates.setdefault(row, {}).setdefault(which, []).append(rate)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {row: {which: statistics.median(each) for which, each in by.items()} for row, by in rates.items()}


#: How many times torch's rate is asked of ours; the rest is measured and stands beside.
TARGETS = {"get": 1.0, "add": 0.5, "multi_get": 1.0, "multi_set": 1.0, "multi_set + multi_get": 1.0}
NOTES = {
    "set": "torch's returns before its server has seen the value, ours when it is stored",
    "multi_set": "the same; 'known done' has torch ask its server afterwards",
}


def run(full: bool) -> Results:
    """Measure every operation beside torch's TCPStore."""
    rates = measure(repeats=7 if full else 3, crowd=full, placement="apart")
    cases = [
        Case.beside(
            row,
            by["holdfast"],
            by["torch"],
            "/s",
            less_is_better=False,
            ratio_min=TARGETS.get(row),
            note=NOTES.get(row, ""),
        )
        for row, by in rates.items()
    ]
    title = f"the store: one client, then {CLIENTS}; {KEYS} keys a batch, values of {len(VALUE)} bytes"
    return Results(title, cases, rival="TCPStore")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__.splitlines()[0])
    parser.add_argument("--serve", choices=("holdfast", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=2, metavar=("STORE", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-crowd", action="store_true", help=f"leave out the {CLIENTS} clients at once")
    parser.add_argument("--placement", choices=("apart", "together", "free"), default="apart")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.serve:
        (serve_holdfast if options.serve == "holdfast" else serve_torch)()
        return
    if options.client:
        be_client(options.client[0], int(options.client[1]))
        return
    rates = measure(options.repeats, not options.no_crowd, options.placement)
    table = {
        row: {
            **{which: round(rate) for which, rate in by.items()},
            "ratio": round(by["holdfast"] / by["torch"], 2),
        }
        for row, by in rates.items()
    }
    if options.json:
        facts = {"keys": KEYS, "value_bytes": len(VALUE), "repeats": options.repeats, "placement": options.placement}
        facts["ops_per_s"] = table
        print(json.dumps(facts, indent=2))
        return
    print(f"operations a second, median of {options.repeats}; {KEYS} keys a batch, values of {len(VALUE)} bytes")
    print(f"placement of the single client: {options.placement}")
    print(f"{'':24}{'holdfast':>12}{'TCPStore':>12}{'ratio':>8}")
    for row, by in table.items():
        print(f"{row:24}{by['holdfast']:>12,}{by['torch']:>12,}{by['ratio']:>8.2f}")


if __name__ == "__main__":
    main()
