"""A coordinator in this process, peers that talk to its port byte by byte, and the facts that are published."""

import queue
import secrets
import socket
import sys
import threading
from pathlib import Path

import pytest

from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.messages import CODEC, NodeSpec, Query, Report, RunSettings
from holdfast.facts import facts
from holdfast.rendezvous.driver import Member
from holdfast.rendezvous.machine import Ask, FactHeard, MemberMachine, RoundSealed
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import FRAME_BYTES_MAX, FrameReader
from holdfast.wire.handshake import NONCE_BYTES, ClientHandshake, Purpose
from holdfast.wire.listener import Limits
from holdfast.wire.loop import io_thread

# The garbage that the bench grinds is ground here too; `bench` lies beside `tests` and is not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

PATIENCE_S = 240.0
SECRET = b"the secret of this test"
LOOPBACK = Endpoint("127.0.0.1", 0)


class Server:
    """A coordinator on the background thread; `refusals` holds the reason of every connection it refused."""

    def __init__(self, limits=Limits(), endpoint=LOOPBACK, tls=None, secret=SECRET):  # noqa: B008 - frozen
        self.secret = secret
        self.refusals = queue.SimpleQueue()
        self._stop_listening = facts.listen(self._on_fact)
        self.coordinator = Coordinator(secret, limits=limits)
        self.endpoint = io_thread().wait(self.coordinator.open(endpoint, tls), PATIENCE_S)

    def close(self):
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
            io_thread().wait(self.coordinator.close(), PATIENCE_S)

    def next_refusal(self):
        return self.refusals.get(timeout=PATIENCE_S)

    def _on_fact(self, fact):
        if fact.kind == "connection_refused":
            self.refusals.put(fact.data["reason"])


class RawPeer:
    """A raw connection to a coordinator's port; it has heard the challenge and proves the secret when told to."""

    def __init__(self, endpoint, *, greeted=True):
        self.socket = socket.create_connection((endpoint.host, endpoint.port), timeout=PATIENCE_S)
        self._reader = FrameReader(stepwise=True)
        self._bodies = []
        self.session = None
        self.challenge = self.hear() if greeted else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def prove(self, secret=SECRET, purpose=Purpose("coordinator")):  # noqa: B008 - frozen
        self._handshake = ClientHandshake(secret, purpose, secrets.token_bytes(NONCE_BYTES))
        self.say(self._handshake.hear(self.challenge))
        return self

    def proven(self, secret=SECRET, purpose=Purpose("coordinator")):  # noqa: B008 - frozen
        assert self.prove(secret, purpose)._handshake.hear(self.hear()) is None
        self.session = self._handshake.session
        self._reader.authenticate(self.session.incoming, FRAME_BYTES_MAX)
        return self

    def say(self, message):
        self.say_sealed(CODEC.encode(message))

    def say_sealed(self, frame):
        """Send a frame with the code that belongs to it at this place of the connection."""
        self.socket.sendall(frame + (self.session.outgoing.mac(frame) if self.session else b""))

    def say_bytes(self, data):
        self.socket.sendall(data)

    def hear(self):
        """Return the next message, or None once the connection is closed."""
        self._bodies += self._reader.feed(b"")
        while not self._bodies:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._bodies += self._reader.feed(data)
        return CODEC.decode(self._bodies.pop(0))


class Job:
    """A run of a few real members; `told` holds whatever they hear after they have their places."""

    def __init__(self, server, nodes=2, run="job"):
        self._server, self._nodes, self._run = server, nodes, run
        self.told = queue.SimpleQueue()
        self._sealed = threading.Semaphore(0)
        self.members = io_thread().wait(self._make(), PATIENCE_S)
        for _ in range(nodes):
            assert self._sealed.acquire(timeout=PATIENCE_S), "the job did not gather"

    async def _make(self):
        members = []
        for number in range(self._nodes):
            spec = NodeSpec(f"node-{number}", f"host-{number}", "default", 1, 1000)
            machine = MemberMachine(self._run, spec, RunSettings(self._nodes, self._nodes), lambda: 0.5)
            member = Member(machine, self._server.endpoint, self._server.secret, self._on_effect)
            member.handle(Ask(1000, float("inf")))
            members.append(member)
        return members

    def _on_effect(self, effect):
        if isinstance(effect, RoundSealed):
            self._sealed.release()
        elif not isinstance(effect, FactHeard):
            self.told.put(effect)

    def assert_undisturbed(self):
        """Check that every member is in the first round, on its first connection, as far as both sides know."""
        with RawPeer(self._server.endpoint).proven() as asker:
            asker.say(Query(self._run))
            report = asker.hear()
        assert isinstance(report, Report)
        [run] = report.runs
        assert (run["stage"], run["round"]) == ("sealed", 1)
        assert [node["connected"] for node in run["nodes"]] == [True] * self._nodes
        assert self.told.empty()

    def close(self):
        io_thread().wait(self._close(), PATIENCE_S)

    async def _close(self):
        for member in self.members:
            member.close()


@pytest.fixture
def serve():
    """Make coordinators that end with the test."""
    servers = []

    def make(*args, **kwargs):
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def start_job():
    """Make jobs that end with the test."""
    jobs = []

    def make(*args, **kwargs):
        jobs.append(Job(*args, **kwargs))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def raw_peer():
    """Connect peers that leave with the test."""
    raw_peers = []

    def make(endpoint, **kwargs):
        raw_peers.append(RawPeer(endpoint, **kwargs))
        return raw_peers[-1]

    yield make
    for each in raw_peers:
        each.socket.close()
