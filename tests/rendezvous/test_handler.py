"""The blocking handler: what it returns, what it raises, and what it tells."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    UsageError,
)
from holdfast.facts import facts
from holdfast.rendezvous import RendezvousInfo, RendezvousParameters, get_rendezvous_handler
from holdfast.rendezvous.machine import RoundBroken, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from tests.processes import free_port

Make = Callable[..., HoldfastRendezvousHandler]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes handlers that leave with the test."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    made: list[HoldfastRendezvousHandler] = []

    def handler(
        endpoint: str = "localhost:0", nodes: int = 1, backend: str = "holdfast", **config: Any
    ) -> HoldfastRendezvousHandler:
        params = RendezvousParameters(backend, endpoint, "run", nodes, nodes, **config)
        created = get_rendezvous_handler(params)
        assert isinstance(created, HoldfastRendezvousHandler)
        made.append(created)
        return created

    yield handler
    for each in reversed(made):
        each.leave("the test is over")


def together(*handlers: HoldfastRendezvousHandler) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(lambda each: each.next_rendezvous(), handlers))


def pair(make: Make, **config: Any) -> list[HoldfastRendezvousHandler]:
    first = make(nodes=2, **config)
    return [first, make(str(first.endpoint), nodes=2, **config)]


@pytest.mark.parametrize("backend", ["holdfast", "c10d"])
def test_a_round_gives_ranks_a_shared_store_and_the_masters_address(make: Make, backend: str) -> None:
    infos = sorted(together(*pair(make, backend=backend)), key=lambda info: info.rank)

    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info


def test_every_round_has_a_store_of_its_own(make: Make) -> None:
    handler = make()
    first = handler.next_rendezvous()
    first.store.set("key", "old")

    second = handler.next_rendezvous()

    assert not second.store.check(["key"])


def test_the_masters_port_is_held_and_can_still_be_listened_on(make: Make) -> None:
    info = make().next_rendezvous().bootstrap_store_info
    assert info is not None

    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("127.0.0.1", info.master_port))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", info.master_port))
        sock.listen()


def test_an_agent_that_polls_sees_a_broken_round_as_a_node_waiting(make: Make) -> None:
    first, second = pair(make)
    together(first, second)
    broken = threading.Event()
    first.listen(lambda effect: broken.set() if isinstance(effect, RoundBroken) else None)
    assert first.num_nodes_waiting() == 0

    second.leave("preempted")
    broken.wait()

    assert first.num_nodes_waiting() == 1


def test_closing_is_told_to_everybody_and_final(make: Make) -> None:
    first, second = pair(make)
    together(first, second)
    told = threading.Event()
    second.listen(lambda effect: told.set() if isinstance(effect, RunEnded) else None)

    first.set_closed()
    told.wait()

    assert second.is_closed()
    with pytest.raises(RendezvousClosedError, match="run 'run' is closed: closed by"):
        second.next_rendezvous()


def test_shutdown_closes_the_run(make: Make) -> None:
    first, second = pair(make)
    together(first, second)
    told = threading.Event()
    first.listen(lambda effect: told.set() if isinstance(effect, RunEnded) else None)

    assert second.shutdown()
    told.wait()

    assert first.is_closed()
    with pytest.raises(RendezvousGracefulExitError):
        second.next_rendezvous()


def test_too_few_nodes_is_a_timeout_that_names_the_nodes(make: Make) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"within 2 s: 1 of 2 nodes \(.+\); waiting for 1 more"):
        make(nodes=2, join_timeout="2s", lease="1s").next_rendezvous()


def test_no_coordinator_is_a_connection_error_that_names_the_endpoint(make: Make) -> None:
    port = free_port()
    with pytest.raises(RendezvousConnectionError, match=rf"no coordinator at localhost:{port} for run 'run'.*refused"):
        make(f"localhost:{port}", is_host=False, join_timeout="200ms").next_rendezvous()


def test_a_wrong_secret_fails_at_once_and_says_what_to_do(make: Make, tmp_path: Path) -> None:
    first = make(nodes=2)
    other = tmp_path / "other"
    other.write_text("a guess that is long enough")
    other.chmod(0o600)

    with pytest.raises(RendezvousConnectionError) as refused:
        make(str(first.endpoint), nodes=2, secret_file=str(other)).next_rendezvous()

    assert str(refused.value) == (
        f"the shared secret is wrong: this node and the coordinator at {first.endpoint} have different ones. "
        f"This node uses the file {other}; give every node the same --secret-file, "
        "or set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET"
    )


def test_a_node_that_is_turned_away_while_it_looks_is_refused_once(make: Make, tmp_path: Path) -> None:
    first = make(nodes=2)
    other = tmp_path / "other"
    other.write_text("a guess that is long enough")
    other.chmod(0o600)
    refusals: list[str] = []
    stop = facts.listen(lambda fact: refusals.append(fact.sentence) if fact.kind == "connection_refused" else None)
    params = RendezvousParameters("holdfast", str(first.endpoint), "run", 1, 2, secret_file=str(other), is_host=False)
    handler = get_rendezvous_handler(params)
    assert isinstance(handler, HoldfastRendezvousHandler)
    first.ask()  # so that the coordinator is up

    assert not handler.would_disturb()
    with pytest.raises(RendezvousConnectionError, match="the shared secret is wrong"):
        handler.next_round()

    handler.leave("the test is over")
    stop()
    assert len(refusals) == 1


@pytest.mark.parametrize("secret_of_first", [True, False])
def test_nodes_with_and_without_a_secret_are_told_apart(make: Make, secret_of_first: bool) -> None:
    first = make(nodes=2, insecure=not secret_of_first)
    sentence = (
        "asks for a shared secret, and this node runs with --insecure"
        if secret_of_first
        else r"runs without a shared secret \(--insecure\), and this node has one"
    )

    with pytest.raises(RendezvousConnectionError, match=sentence):
        make(str(first.endpoint), nodes=2, insecure=secret_of_first).next_rendezvous()


def test_one_node_alone_needs_no_file_and_tells_its_secret_to_its_workers_only(make: Make, tmp_path: Path) -> None:
    first, second = make(), make()

    assert first.secret.key != second.secret.key
    assert first.secret.as_environ()["HOLDFAST_SECRET"].encode() == first.secret.key
    assert list(tmp_path.iterdir()) == []


def test_nodes_of_different_hosts_use_the_users_own_secret_by_default(make: Make, tmp_path: Path) -> None:
    remote = make("192.0.2.1", nodes=2)

    assert remote.secret.own
    assert remote.secret.path == str(tmp_path / "secret")
    assert remote.secret.key == make(nodes=2).secret.key


def test_a_port_where_something_else_talks_is_a_clear_error(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            client, _ = server.accept()
            with client:
                client.sendall(b"220 mail.example.org ESMTP\r\n")
                client.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(RendezvousConnectionError, match="something else is talking to this port"):
            make(f"127.0.0.1:{server.getsockname()[1]}").next_rendezvous()
        thread.join()


def test_a_taken_port_is_a_clear_error_for_a_node_that_must_host(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match=f"cannot listen on 127.0.0.1:{port}"):
            make(f"127.0.0.1:{port}", is_host=True, join_timeout="100ms").next_rendezvous()


def test_require_secret_is_the_default_and_excludes_insecure(make: Make) -> None:
    assert make("192.0.2.1", require_secret=True).secret.key
    with pytest.raises(UsageError, match="--require-secret and --insecure cannot be used together"):
        make("192.0.2.1", require_secret=True, insecure=True)


def test_insecure_warns(make: Make) -> None:
    told: list[str] = []
    stop = facts.listen(lambda fact: told.append(fact.sentence) if fact.kind == "open_door" else None)

    assert not make("192.0.2.1", insecure=True).secret.key

    stop()
    assert told == [
        "no shared secret (--insecure): anyone who can reach 192.0.2.1:29400 can join this run, "
        "read what it shares, and end it"
    ]


def test_static_ranks_are_those_given(make: Make) -> None:
    port = free_port()
    handlers = [
        make(f"127.0.0.1:{port}", nodes=3, backend="static", node_rank=rank, local_world_size=rank + 1)
        for rank in (2, 0, 1)
    ]

    assert [info.rank for info in together(*handlers)] == [2, 0, 1]
    assert [handler.place.first_rank for handler in handlers if handler.place] == [3, 0, 1]


def test_a_static_rank_that_is_taken_is_refused_by_name(make: Make) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    together(*(make(endpoint, nodes=2, backend="static", node_rank=rank) for rank in (0, 1)))

    with pytest.raises(RendezvousStateError, match="has node rank 1 already; give every node its own --node-rank"):
        make(endpoint, nodes=2, backend="static", node_rank=1).next_rendezvous()


def test_a_static_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(UsageError, match="--node-rank 2 does not fit 2 nodes: use 0 to 1"):
        get_rendezvous_handler(RendezvousParameters("static", "localhost", "run", 2, 2, node_rank=2))


def test_rejected_settings_are_a_state_error(make: Make) -> None:
    first = make(nodes=1, standalone=False)
    first.next_rendezvous()

    with pytest.raises(RendezvousStateError, match="start every node with the same --nnodes"):
        make(str(first.endpoint), nodes=2).next_rendezvous()
