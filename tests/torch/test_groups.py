"""Process groups that live as long as a round: made anew in the same process, and ended from another thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from holdfast.errors import RoundOverError, UsageError  # noqa: E402
from holdfast.store import MemoryStore, StoreClient  # noqa: E402
from holdfast.testing.store_server import StoreServer  # noqa: E402
from holdfast.torch import RoundGroups  # noqa: E402
from holdfast.torch.groups import _RoundStore  # noqa: E402

pytestmark = pytest.mark.torch

#: Two of these meet at a store, and do as the JSON argument says.
PEER = """
import json, os, socket, sys, threading, types
import torch, torch.distributed as dist
from holdfast.store import StoreClient
from holdfast.torch import RoundGroups
from holdfast.errors import RoundOverError

told = json.loads(sys.argv[1])

def tell(**data):
    print(json.dumps(data), flush=True)

def circle(number):
    store = StoreClient.connect(told["endpoint"], f"round-{number}", secret=b"")
    return types.SimpleNamespace(number=number, rank=told["rank"], world_size=2, store=store)

def descriptors():
    return len(os.listdir("/proc/self/fd"))

groups = RoundGroups("gloo")
hook = sys.excepthook
# A connection of the program must not be touched by any of this.
listener = socket.create_server(("127.0.0.1", 0))
mine, theirs = socket.create_connection(listener.getsockname()), listener.accept()[0]
if told["what"] == "rounds":
    held = []
    for number in range(20):
        groups.form(circle(number))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 3
        groups.close()
        assert not dist.is_initialized()
        held.append(descriptors())
    assert held[-1] <= held[2] + 2, held
    groups.form(circle(20))
    given, got = torch.full((4,), float(told["rank"])), torch.zeros(4)
    groups.exchange([(given, 1 - told["rank"])], [(got, 1 - told["rank"])])
    assert got.tolist() == [1.0 - told["rank"]] * 4
    groups.close()
    assert sys.excepthook is hook
elif told["what"] == "blocked":
    groups.form(circle(0))
    sub = groups.new_group([0, 1])
    for group in (None, sub):
        dist.all_reduce(torch.ones(3), group=group)
    if told["rank"] == 1:
        tell(event="silent")
        sys.stdin.readline()
        os._exit(0)
    sys.stdin.readline()
    threading.Timer(0.2, groups.abort, ["rank 1 is silent"]).start()
    try:
        dist.all_reduce(torch.ones(100_000), group=sub if told["sub"] else None)
    except RuntimeError as error:
        tell(event="freed", reason=groups.aborted, error=str(error)[:80])
    groups.close()
    groups.form(types.SimpleNamespace(number=1, rank=0, world_size=1, store=circle(1).store))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    tell(event="alone", value=tensor.tolist())
    groups.close()
elif told["what"] == "absent":
    timer = threading.Timer(0.2, groups.abort, ["rank 1 did not come"])
    timer.start()
    try:
        groups.form(circle(0))
    except RoundOverError as over:
        tell(event="freed", reason=str(over))
theirs.sendall(b"still here")
assert mine.recv(10) == b"still here"
for sock in (mine, theirs, listener):
    sock.close()
tell(event="done")
"""


class Peer:
    def __init__(self, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer ended without a word"
        told: dict[str, Any] = json.loads(line)
        return told

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def peers() -> Iterator[Any]:
    started: list[Peer] = []
    with StoreServer() as server:

        def start(what: str, ranks: tuple[int, ...] = (0, 1), **options: Any) -> list[Peer]:
            started.extend(Peer(what=what, rank=rank, endpoint=str(server.endpoint), **options) for rank in ranks)
            return started

        yield start
        for peer in started:
            peer.close()


@pytest.mark.slow
def test_twenty_rounds_in_one_process_leave_nothing_behind(peers: Any) -> None:
    for peer in peers("rounds"):
        assert peer.hear()["event"] == "done"
        assert peer.process.wait(240) == 0


@pytest.mark.slow
@pytest.mark.parametrize("sub", [False, True])
def test_a_collective_with_a_silent_peer_is_ended_from_another_thread(peers: Any, sub: bool) -> None:
    """Of the group itself, or of a group of some ranks; the next group is then made in the same process."""
    waiting, silent = peers("blocked", sub=sub)
    assert silent.hear()["event"] == "silent"
    waiting.go()

    freed = waiting.hear()

    assert freed["event"] == "freed"
    assert freed["reason"] == "rank 1 is silent"
    assert waiting.hear()["value"] == [1.0] * 3
    assert waiting.hear()["event"] == "done"
    silent.go()


@pytest.mark.slow
def test_a_group_whose_peer_never_comes_is_given_up_when_the_round_is_over(peers: Any) -> None:
    (alone,) = peers("absent", ranks=(0,))

    assert alone.hear() == {"event": "freed", "reason": "rank 1 did not come"}
    assert alone.hear()["event"] == "done"


def test_a_wait_for_a_key_ends_with_the_round() -> None:
    over: list[str] = []
    store = _RoundStore(MemoryStore(), lambda: over[0] if over else None)
    store.set("there", "1")
    assert store.get("there") == b"1"
    assert store.multi_get(["there"]) == [b"1"]
    store.wait(["there"])
    clone = store.clone()
    threading.Timer(0.05, over.append, ["it is over"]).start()

    for wait in (lambda: store.get("not there"), lambda: clone.wait(["not there"])):
        with pytest.raises(RoundOverError, match="it is over"):
            wait()


def test_a_forked_child_closes_its_copies_of_the_connections() -> None:
    import types

    import torch.distributed as dist

    groups = RoundGroups("gloo")
    with StoreServer() as server, StoreClient.connect(server.endpoint, "round", secret=b"") as store:
        groups.form(types.SimpleNamespace(number=1, rank=0, world_size=1, store=store))  # type: ignore[arg-type]
        (loop,) = groups._sockets._loops
        read, write = os.pipe()
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that other threads do not come along is the point
            pid = os.fork()
        if pid == 0:
            try:
                os.fstat(loop)
            except OSError:
                os.write(write, b"closed")
            os._exit(0)
        os.waitpid(pid, 0)
        found = os.read(read, 10)
        os.close(read)
        os.close(write)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        with pytest.raises(UsageError, match="already"):
            RoundGroups("gloo").form(types.SimpleNamespace(rank=0, world_size=1, store=store))  # type: ignore[arg-type]
        groups.close()

    assert found == b"closed"


class PretendedDevice:
    """Counts collectives as torch does, and notes whether the host waited for all of them."""

    def __init__(self) -> None:
        self.begun = self.settles = 0
        self.also: Callable[[], None] = lambda: None

    def operations(self) -> int:
        return self.begun

    def begin(self, _: Any) -> Callable[[], None]:
        self.begun += 1
        self.also()
        return lambda: None

    def settle(self) -> None:
        self.settles += 1


@pytest.fixture
def pretended() -> tuple[RoundGroups, PretendedDevice]:
    groups, device = RoundGroups("nccl"), PretendedDevice()
    groups._maker, groups.device_sums, groups._formed = device, device, True
    return groups, device


def test_sums_that_were_waited_for_are_not_waited_for_again(pretended: tuple[RoundGroups, PretendedDevice]) -> None:
    groups, device = pretended
    waits = [groups.begin_sum(torch.zeros(1)) for _ in range(3)]

    for wait in reversed(waits):
        wait()
    groups.settle()

    assert device.settles == 0


@pytest.mark.parametrize("when", ["before", "between", "meanwhile", "after"])
def test_a_collective_of_other_code_is_waited_for(pretended: tuple[RoundGroups, PretendedDevice], when: str) -> None:
    groups, device = pretended

    def begin_another() -> None:
        device.begun += 1

    if when == "before":
        begin_another()
    device.also = begin_another if when == "meanwhile" else device.also
    waits = [groups.begin_sum(torch.zeros(1))]
    if when == "between":
        begin_another()
    waits.append(groups.begin_sum(torch.zeros(1)))
    if when == "after":
        begin_another()
    for wait in reversed(waits):
        wait()

    groups.settle()

    assert device.settles == 1


def test_a_sum_that_an_abort_has_ended_is_not_believed(pretended: tuple[RoundGroups, PretendedDevice]) -> None:
    groups, _ = pretended
    wait = groups.begin_sum(torch.zeros(1))
    groups.aborted = "a peer is gone"

    with pytest.raises(RoundOverError, match="a peer is gone"):
        wait()
