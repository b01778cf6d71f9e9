"""The ring: collectives with a fixed order that can be ended at any moment. Workers are threads with real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import RoundOverError, UsageError
from holdfast.train import neighbours
from holdfast.train.neighbours import CALLERS_MAX, CODEC, PURPOSE
from holdfast.train.operations import CHUNK_BYTES
from holdfast.train.ring import Ring, listen, make_token
from holdfast.wire.frames import FrameReader
from holdfast.wire.handshake import (
    NONCE_BYTES,
    WRONG_SECRET,
    Challenge,
    ClientHandshake,
    Proof,
    Refused,
    ServerHandshake,
    Welcome,
)

np = pytest.importorskip("numpy")


SECRET = b"shared"
PATIENCE_S = 240.0


def token(rank: int) -> bytes:
    return make_token(SECRET, "1.nonce", rank)


def together(world: int, work: Callable[[Ring], Any]) -> list[Any]:
    """Run `work` on every rank of a ring, each in its thread; returns what each returned or raised."""
    listeners = [listen("127.0.0.1") for _ in range(world)]

    def one(rank: int) -> Any:
        ring = Ring.open(rank, world, listeners[rank], listeners[(rank + 1) % world].getsockname(), token)
        try:
            return work(ring)
        except RoundOverError as over:
            return over
        finally:
            ring.close()

    try:
        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(one, range(world)))
    finally:
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 7, CHUNK_BYTES // 8, 3 * CHUNK_BYTES // 8 + 5])
def test_a_sum_is_the_sum_in_the_order_of_the_ranks(world: int, size: int) -> None:
    arrays = [np.random.default_rng(rank).normal(size=size) for rank in range(world)]

    results = together(world, lambda ring: ring.all_reduce(arrays[ring.rank]))

    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    assert all(result.tobytes() == expected.tobytes() for result in results)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
def test_the_same_micro_batches_give_the_same_bits_whatever_the_world_size(dtype: str) -> None:
    parts = [(np.random.default_rng(number).normal(size=(3, 1000)) * 10**number).astype(dtype) for number in range(4)]

    def run(world: int) -> bytes:
        def work(ring: Ring) -> bytes:
            mine = parts[ring.rank * len(parts) // world : (ring.rank + 1) * len(parts) // world]
            result = ring.all_reduce_parts(mine, like=parts[0])
            assert result.shape == (3, 1000)
            return bytes(result.tobytes())

        results = together(world, work)
        assert len(set(results)) == 1
        return results[0]

    assert len({run(world) for world in (1, 2, 3, 4, 6)}) == 1


def test_maximum_and_minimum() -> None:
    def work(ring: Ring) -> tuple[Any, Any]:
        mine = np.array([ring.rank, -ring.rank])
        return ring.all_reduce(mine, "max").tolist(), ring.all_reduce(mine, "min").tolist()

    assert together(3, work) == [([2, 0], [0, -2])] * 3


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 3])
@pytest.mark.parametrize("root", [0, 1, 2])
def test_a_broadcast_gives_everybody_the_bytes_of_the_root(size: int, root: int) -> None:
    data = os.urandom(size)

    results = together(3, lambda ring: bytes(ring.broadcast(data if ring.rank == root else None, root)))

    assert results == [data] * 3


def test_a_gathering_gives_everybody_everything_in_the_order_of_the_ranks() -> None:
    results = together(4, lambda ring: ring.all_gather(b"x" * ring.rank))

    assert results == [[b"", b"x", b"xx", b"xxx"]] * 4


def test_operations_follow_each_other_without_waiting_for_stragglers() -> None:
    def work(ring: Ring) -> list[Any]:
        sums = [ring.all_reduce(np.array([float(number + ring.rank)])).item() for number in range(200)]
        ring.barrier()
        return sums

    assert together(3, work) == [[3.0 * number + 3 for number in range(200)]] * 3


def test_a_death_in_the_middle_ends_the_operation_of_everybody() -> None:
    def work(ring: Ring) -> Any:
        ring.all_reduce(np.zeros(10))
        if ring.rank == 1:
            return "gone"
        return ring.all_reduce(np.zeros(10))

    results = together(3, work)

    assert results[1] == "gone"
    assert isinstance(results[0], RoundOverError)
    assert isinstance(results[2], RoundOverError)


def test_an_operation_that_waits_for_a_silent_worker_is_aborted_from_another_thread() -> None:
    waiting = threading.Barrier(3)
    freed = threading.Event()

    def work(ring: Ring) -> Any:
        ring.barrier()
        if ring.rank == 1:
            waiting.wait()
            freed.wait()
            return "never took part"
        threading.Thread(target=lambda: (waiting.wait(), ring.abort("rank 1 is frozen"))).start()
        try:
            return ring.all_reduce(np.zeros(10 * CHUNK_BYTES))
        finally:
            if ring.rank == 0:
                freed.set()

    results = together(3, work)

    assert str(results[0]) == str(results[2]) == "rank 1 is frozen"


def test_a_ring_that_never_closes_is_aborted_while_it_is_opened() -> None:
    made: list[Ring] = []
    there = threading.Event()

    def until(ring: Ring) -> None:
        made.append(ring)
        there.set()

    with listen("127.0.0.1") as mine, listen("127.0.0.1") as other, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Ring.open, 1, 2, mine, other.getsockname(), token, until=until)
        there.wait()
        made[0].abort("the round broke")
        with pytest.raises(RoundOverError, match="the round broke"):
            opening.result()


def test_a_neighbour_that_listens_later_is_tried_again() -> None:
    first, second = listen("127.0.0.1"), socket.socket()
    second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    second.bind(("127.0.0.1", 0))
    refused = threading.Event()

    def until(_: Ring) -> None:
        refused.set()

    with first, second, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Ring.open, 0, 2, first, second.getsockname(), token, until=until)
        refused.wait()
        second.listen()
        ring = Ring.open(1, 2, second, first.getsockname(), token)
        other = opening.result()
        ring.close()
        other.close()


def add_up(rank: int, mine: socket.socket, other: socket.socket) -> float:
    """Open a ring of two and take the sum of a one from each."""
    ring = Ring.open(rank, 2, mine, other.getsockname(), token)
    try:
        return float(ring.all_reduce(np.ones(1)).item())
    finally:
        ring.close()


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    with sock, contextlib.suppress(ConnectionResetError):  # sent away while it still had something to say
        while more := sock.recv(4096):
            data += more
    return data


def messages_in(data: bytes) -> list[Any]:
    return [CODEC.decode(body) for body in FrameReader().feed(data)]


def proof(sock: socket.socket, secret: bytes) -> bytes:
    """Answer the challenge that comes on a connection."""
    [challenge] = messages_in(sock.recv(4096))
    answer = ClientHandshake(secret, PURPOSE, bytes(NONCE_BYTES)).hear(challenge)
    assert answer is not None
    return CODEC.encode(answer)


def test_unproven_peers_and_workers_of_other_rounds_are_refused() -> None:
    wrong = [make_token(SECRET, "2.nonce", 0), make_token(b"other", "1.nonce", 0), token(1)]
    noise = [b"x" * 32, token(0), b"HF\x02\0\xff\xff\xff\xff", b""]
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(add_up, 0, first, second)
        peers = [socket.create_connection(first.getsockname(), timeout=PATIENCE_S) for _ in (*wrong, *noise)]
        for peer, secret in zip(peers, wrong, strict=False):
            peer.sendall(proof(peer, secret))
        for peer, data in zip(peers[len(wrong) :], noise, strict=True):
            peer.sendall(data)
        for peer in peers[: len(wrong)]:
            assert messages_in(read_to_end(peer)) == [Refused(WRONG_SECRET, wrong_secret=True)]
        assert pool.submit(add_up, 1, second, first).result() == waiting.result() == 2.0
        for peer in peers[len(wrong) :]:
            assert [type(message) for message in messages_in(read_to_end(peer))] in ([Challenge], [])


def test_nothing_is_said_to_a_listener_that_has_proven_nothing() -> None:
    """An impostor on the neighbour's port learns no token and gets no data; it may come between, and is passed over."""
    with listen("127.0.0.1") as mine, listen("127.0.0.1") as other, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(add_up, 0, mine, other)
        silent, _ = other.accept()
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent.recv(1)
        handshake = ServerHandshake(b"not the token", PURPOSE, bytes(NONCE_BYTES))
        silent.settimeout(PATIENCE_S)
        silent.sendall(CODEC.encode(handshake.challenge))
        data = silent.recv(4096)
        [answer] = messages_in(data)
        assert isinstance(answer, Proof)
        assert token(1) not in data
        silent.sendall(CODEC.encode(Welcome(bytes(32), "")))
        assert read_to_end(silent) == b""

        assert add_up(1, other, mine) == opening.result() == 2.0


def test_a_neighbour_that_is_still_in_another_round_is_tried_again() -> None:
    with listen("127.0.0.1") as mine, listen("127.0.0.1") as other, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(add_up, 0, mine, other)
        for _ in range(3):
            early, _ = other.accept()
            early.settimeout(PATIENCE_S)
            handshake = ServerHandshake(make_token(SECRET, "0.nonce", 1), PURPOSE, bytes(NONCE_BYTES))
            early.sendall(CODEC.encode(handshake.challenge))
            [answer] = messages_in(early.recv(4096))
            assert handshake.hear(answer) == Refused(WRONG_SECRET, wrong_secret=True)
            early.sendall(CODEC.encode(Refused(WRONG_SECRET, wrong_secret=True)))
            early.close()

        assert add_up(1, other, mine) == opening.result() == 2.0


def test_a_ring_says_why_it_did_not_close() -> None:
    with listen("127.0.0.1") as mine, listen("127.0.0.1") as other, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Ring.open, 0, 2, mine, other.getsockname(), token, timeout_s=2.0)
        early, _ = other.accept()
        early.sendall(CODEC.encode(Refused("no room")))
        early.close()

        with pytest.raises(RoundOverError, match=r"a neighbour did not come in time \(no room\)"):
            opening.result()


def test_connections_before_the_ring_forms_are_limited_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CALLER_TIMEOUT_S", 0.1)
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(add_up, 0, first, second)
        crowd = [socket.create_connection(first.getsockname(), timeout=PATIENCE_S) for _ in range(3 * CALLERS_MAX)]
        for silent in crowd:  # for want of room or of time, all of them are sent away
            assert [type(message) for message in messages_in(read_to_end(silent))] == [Challenge]

        assert pool.submit(add_up, 1, second, first).result() == waiting.result() == 2.0


def test_the_oldest_connection_makes_room_while_the_ring_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CALLER_TIMEOUT_S", 10 * PATIENCE_S)  # it is not time that ends them
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(add_up, 0, first, second)
        crowd = [socket.create_connection(first.getsockname(), timeout=PATIENCE_S) for _ in range(CALLERS_MAX + 5)]
        for silent in crowd[:5]:
            assert [type(message) for message in messages_in(read_to_end(silent))] == [Challenge]
        assert pool.submit(add_up, 1, second, first).result() == waiting.result() == 2.0
        for silent in crowd[5:]:
            silent.close()


def test_workers_that_disagree_are_told_so() -> None:
    def work(ring: Ring) -> Any:
        return ring.all_reduce(np.zeros(4 if ring.rank else 5))

    assert any("disagree" in str(result) for result in together(2, work))


def test_a_worker_without_arrays_must_say_what_they_look_like() -> None:
    ring = Ring(0, 1)
    with pytest.raises(UsageError, match="like="):
        ring.all_reduce_parts([])
    with pytest.raises(UsageError, match="not a way to combine"):
        ring.all_reduce(np.zeros(1), "mean")
    ring.close()
