"""The relay: workers' values reach the agent, and rubbish is dropped."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import UsageError
from holdfast.facts import Fact
from holdfast.metrics.api import MetricData
from holdfast.metrics.relay import (
    DATAGRAM_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    VALUES_MAX,
    Relay,
    RelayHandler,
    decode,
    encode,
)
from tests.metrics.conftest import PATIENCE_S

DATA = MetricData(5.0, "my_app", "loss", 0.5)

Taken = queue.SimpleQueue  # of (data, rank)


@pytest.fixture
def taken() -> Taken:
    return queue.SimpleQueue()


@pytest.fixture
def relay(tmp_path: Path, taken: Taken) -> Iterator[Relay]:
    made = Relay(None, lambda data, rank: taken.put((data, rank)))
    yield made
    made.close()


def send(relay: Relay, datagram: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.settimeout(PATIENCE_S)
        client.sendto(datagram, str(relay.path))


def test_what_is_encoded_is_decoded() -> None:
    batch = decode(encode(3, [DATA]))

    assert batch is not None
    assert (batch.version, batch.rank, [MetricData(*value) for value in batch.values]) == (1, 3, [DATA])


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"hello",
        bytes(range(256)),
        b"\xdc\xff\xff" * 1000,
        b"\x91" * 5000,
        msgspec.msgpack.encode([2, 0, []]),
        msgspec.msgpack.encode([1, -1, []]),
        msgspec.msgpack.encode([1, 0, [["now", "g", "n", 1]]]),
        msgspec.msgpack.encode([1, 0, [[1.0, "g", "n"]]]),
        msgspec.msgpack.encode([1, 0, [[1.0, "g", "n" * (NAME_CHARACTERS_MAX + 1), 1.0]]]),
        msgspec.msgpack.encode([1, 0, [[1.0, "g", "n", 1.0]] * (VALUES_MAX + 1)]),
        msgspec.json.encode([1, 0, []]),
        encode(0, [DATA._replace(name="nn")]).replace(b"nn", b"\xff\xff"),
    ],
    ids=range(13),
)
def test_what_is_not_ours_is_ignored(datagram: bytes) -> None:
    assert decode(datagram) is None


def too_long() -> bytes:
    """Return a datagram that would be a fine batch if only its first part were read."""
    short = len(encode(9, [DATA._replace(name="n" * 200)] * VALUES_MAX))
    each, rest = divmod(DATAGRAM_BYTES_MAX - short, VALUES_MAX)
    names = ["n" * (200 + each + (number < rest)) for number in range(VALUES_MAX)]
    batch = encode(9, [DATA._replace(name=name) for name in names])
    assert len(batch) == DATAGRAM_BYTES_MAX
    assert decode(batch) is not None
    return batch + b"x"


def test_rubbish_is_counted_and_what_follows_it_arrives(relay: Relay, taken: Taken) -> None:
    not_utf8 = encode(0, [DATA._replace(name="nn")]).replace(b"nn", b"\xff\xff")
    for datagram in (b"rubbish", b"", too_long(), not_utf8, encode(1, [DATA])):
        send(relay, datagram)

    assert taken.get(timeout=PATIENCE_S) == (DATA, 1)
    assert relay.ignored == 4


def test_a_value_that_is_not_taken_costs_only_itself(heard: list[Fact]) -> None:
    arrived: Taken = queue.SimpleQueue()

    def picky(data: MetricData, rank: int | None) -> None:
        if data.value < 0:
            raise ValueError("negative")
        arrived.put(data.value)

    relay = Relay(None, picky)
    send(relay, encode(0, [DATA._replace(value=value) for value in (-1.0, -2.0, 3.0)]))

    assert arrived.get(timeout=PATIENCE_S) == 3
    assert relay.failed == 2
    assert [fact.sentence for fact in heard] == ["a worker's metric was not taken: negative; more are only counted"]
    relay.close()


def test_a_receiver_that_would_end_the_thread_is_told_of_and_what_follows_arrives(heard: list[Fact]) -> None:
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

    def deliver(data: MetricData, _: int | None) -> None:
        if data.value == 0.5:
            raise SystemExit("planted")
        arrived.put(data.value)

    relay = Relay(None, deliver)
    send(relay, encode(0, [DATA]))
    send(relay, encode(0, [DATA._replace(value=1.5)]))

    assert arrived.get(timeout=PATIENCE_S) == 1.5
    relay.close()
    assert [fact.data["error"] for fact in heard if fact.kind == "thread_trouble"] == ["SystemExit: planted"]


def test_closing_takes_what_has_arrived_and_leaves_no_file(tmp_path: Path) -> None:
    taken: list[float] = []
    relay = Relay(tmp_path / "r.sock", lambda data, _: taken.append(data.value))
    for number in range(5):
        send(relay, encode(0, [DATA._replace(value=number)]))
    relay.close()
    relay.close()

    assert taken == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == []


def test_a_handler_gathers_and_sends_more_than_fits_one_datagram(
    relay: Relay, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "6")
    handler = RelayHandler(str(relay.path))
    name = "n" * NAME_CHARACTERS_MAX
    for number in range(VALUES_MAX + 10):
        handler.emit(MetricData(1.0, "g", name, number))
    handler.close()
    found = [taken.get(timeout=PATIENCE_S) for _ in range(VALUES_MAX + 10)]

    assert [(data.value, rank) for data, rank in found] == [(number, 6) for number in range(VALUES_MAX + 10)]
    assert (relay.ignored, handler.dropped) == (0, 0)


def test_what_the_agent_would_not_take_is_refused_alone(relay: Relay, taken: Taken) -> None:
    handler = RelayHandler(str(relay.path))
    with pytest.raises(UsageError, match="at most 512 characters"):
        handler.emit(DATA._replace(name="n" * (NAME_CHARACTERS_MAX + 1)))
    with pytest.raises(UsageError, match="must be a number"):
        handler.emit(DATA._replace(value="much"))  # type: ignore[arg-type]
    handler.emit(DATA)
    handler.close()

    assert taken.get(timeout=PATIENCE_S)[0] == DATA


def test_an_agent_that_is_gone_costs_the_values_and_nothing_else(tmp_path: Path) -> None:
    handler = RelayHandler(str(tmp_path / "nobody.sock"))
    handler.emit(DATA)
    with pytest.raises(FileNotFoundError):
        handler.flush()
    handler.close()

    assert handler.dropped == 1


def test_an_agent_that_stands_still_holds_a_worker_up_for_a_moment_only(tmp_path: Path) -> None:
    """This socket has no reader, so its queue fills."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "s"))
        handler = RelayHandler(str(tmp_path / "s"))

        def send_until_refused() -> None:
            for _ in range(100_000):
                handler.emit(DATA)
                handler.flush()

        with pytest.raises(TimeoutError):
            send_until_refused()
        handler.close()

    assert handler.dropped == 1


#: Values are dropped rather than waited for; on a busy machine the test's own process may be slow to take them.
WORKER = """
import sys
from holdfast import metrics
from holdfast.metrics import api, relay
relay.SEND_TIMEOUT_S = 240.0
stream = metrics.getStream("my_app")
for number in range(int(sys.argv[1])):
    stream.add_value("step", number)
api.installed().close(240.0)
"""


def test_values_of_real_worker_processes_arrive_with_their_ranks(relay: Relay, taken: Taken) -> None:
    env = {**os.environ, "HOLDFAST_METRICS": "prometheus", "HOLDFAST_METRICS_SOCKET": str(relay.path)}
    workers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", WORKER, "1000"], env={**env, "RANK": str(rank)})
        for rank in range(3)
    ]
    found = [taken.get(timeout=PATIENCE_S) for _ in range(3000)]

    assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0, 0]
    for rank in range(3):
        assert [data.value for data, whose in found if whose == rank] == list(range(1000))
    assert relay.ignored == 0
