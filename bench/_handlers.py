"""N blocking handlers as threads of one process, through the public API; ours and torch's in the same harness.

    python -m bench._handlers holdfast 64 fresh      prints the seconds as JSON
    python -m bench._handlers torch 64 ready

`fresh`: each thread makes its handler and asks for a round, as N agents do that start together; one handler, which
carries the coordinator or hosts the TCPStore, is there before. `ready`: all handlers were made before the clock starts,
torch's with their connections open already, while ours connect only when they are asked.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.wire.ports import HeldPort

#: Makes one handler.
Make = Callable[[], Any]

RUN_ID = "bench"
JOIN_TIMEOUT_S = 300


def holdfast_makers(nodes: int) -> list[Make]:
    """Make the handler that carries the coordinator; returns what makes each of the N."""
    from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler

    def make(endpoint: str) -> Any:
        return get_rendezvous_handler(RendezvousParameters("holdfast", endpoint, RUN_ID, nodes, nodes))

    first = make("localhost:0")
    return [lambda: first, *[partial(make, str(first.endpoint))] * (nodes - 1)]


def torch_makers(nodes: int) -> list[Make]:
    """Make the handler of torch's c10d backend that hosts the TCPStore; returns what makes each of the N."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    held = HeldPort()  # no other process takes the port before torch's server listens on it
    endpoint = f"localhost:{held.port}"

    def make(is_host: bool) -> Any:
        settings = {"is_host": is_host, "join_timeout": JOIN_TIMEOUT_S}
        return get_rendezvous_handler(RendezvousParameters("c10d", endpoint, RUN_ID, nodes, nodes, **settings))

    first = make(True)
    held.close()
    return [lambda: first, *[partial(make, False)] * (nodes - 1)]


def gather(makers: list[Make]) -> float:
    """Have every handler in a thread of its own take part in one round; returns the seconds that took."""
    infos: list[Any] = [None] * len(makers)

    def take_part(number: int) -> None:
        handlers[number] = makers[number]()
        infos[number] = handlers[number].next_rendezvous()

    handlers: list[Any] = [None] * len(makers)  # kept, so that none is torn down while others still wait
    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(len(makers))]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert sorted(info.rank for info in infos) == list(range(len(makers))), "the ranks are wrong"
    assert {info.world_size for info in infos} == {len(makers)}
    return seconds


def main(which: str, nodes: int, mode: str) -> None:
    """Measure once."""
    makers = {"holdfast": holdfast_makers, "torch": torch_makers}[which](nodes)
    if mode == "ready":
        made = [make() for make in makers]
        makers = [partial(lambda handler: handler, handler) for handler in made]
    print(json.dumps({"gather_s": gather(makers)}), flush=True)
    # Shutting down is not what is measured, and a fresh process comes next anyway.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
