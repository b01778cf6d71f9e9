"""The native backend: a blocking handler over a member, to which the coordinator pushes.

The agent that owns the endpoint's address runs the coordinator in its own process, unless a process already listens
there: a `holdfast serve`, or another agent on this machine.
"""

from __future__ import annotations

import queue
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from holdfast.coordinator.machine import round_space, run_space
from holdfast.coordinator.messages import Cause, NodeSpec, Place
from holdfast.coordinator.query import ask_coordinator
from holdfast.coordinator.state import Stage
from holdfast.errors import (
    HandshakeError,
    HoldfastError,
    InternalError,
    PeerError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    UnavailableError,
    UsageError,
    WrongSecretError,
)
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from holdfast.rendezvous.driver import Host, Member, jitter, owns_address
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    Close,
    Fail,
    Finish,
    Leave,
    MemberEffect,
    MemberEvent,
    MemberMachine,
    PeerCall,
    PeerCalled,
    PeerReply,
    Replace,
    RoundSealed,
    RunEnded,
)
from holdfast.rendezvous.memory import MemoryFile
from holdfast.rendezvous.settings import NodeSettings, node_settings, run_settings
from holdfast.rendezvous.standby import Standby
from holdfast.store.client import StoreClient
from holdfast.store.environ import (
    ENDPOINT_VARIABLE,
    ETCD_VARIABLE,
    MAX_WORKERS_VARIABLE,
    SPACE_VARIABLE,
    STANDBY_VARIABLE,
)
from holdfast.text import clean
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.loop import io_thread
from holdfast.wire.ports import HeldPort
from holdfast.wire.secret import Secret, find_secret, open_door_warning
from holdfast.wire.tls import TlsFiles

#: How long a farewell may take to be sent.
GOODBYE_S = 2.0
#: How long a look at the run may take before it is joined.
PEEK_S = 1.0
#: So many of the agents that an agent before this one knew are looked at.
PEEKS_MAX = 4
#: How often a wait looks whether the thread that would answer it still runs.
LOOK_S = 1.0

Outcome = RoundSealed | RunEnded | AskFailed


class NodeShare(Protocol):
    """A node's workers in a run."""

    role: str
    local_world_size: int
    max_restarts: int


class HoldfastRendezvousHandler(RendezvousHandler):
    """One node's handler of the native rendezvous.

    It has more than other handlers: `sentence()` gives the reason for a wait, `listen()` reports broken rounds the
    moment they break, `place` holds every rank of this node, and `fail`, `finish` and `leave` tell the others.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        if not params.run_id:
            raise UsageError("a run needs an id: give --rdzv-id")
        self._backend = params.backend
        self._run_id = params.run_id
        self._node = node_settings(params)
        self._tls = self._node.tls
        asked = parse_endpoint(params.endpoint)
        self._secret = _secret(asked, self._node)
        self._io = io_thread()
        #: Takes the answer to an ask that is waited for by `next_round`.
        self._waiting: queue.SimpleQueue[Outcome] | None = None
        self._listeners: list[Callable[[MemberEffect], None]] = []
        self._held: HeldPort | None = None
        self._peer_port = 0
        self._ended: RunEnded | None = None
        #: Why the coordinator turned this node away when it only looked at the run.
        self._refused: str | None = None
        self._left = False
        #: Whether this node has closed the run: then it is over, whether or not the answer came before this node left.
        self._closed = False
        #: Whether another agent may carry the coordinator.
        self._moves = run_settings(params).takeover and self.elected_by is None
        self._name = secrets.token_hex(8)
        self._file = MemoryFile(self._run_id, str(asked), socket.gethostname()) if self._moves and asked.port else None
        self._host = self._find_host(asked)
        self._endpoint = self._host.endpoint if self._host is not None else asked
        self._member = self._make_member(params)
        self._forget_io = self._io.on_end(self._on_io_end)

    # -- what every handler has ----------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """Return the backend's name as it was asked for."""
        return self._backend

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a round is agreed and return this node's part in it."""
        return self._info(self.next_round())

    def is_closed(self) -> bool:
        """Return whether the run is over."""
        return self._closed or self._ended is not None

    def set_closed(self) -> None:
        """End the run for all nodes."""
        self.close(f"closed by {self._spec.host}")

    def close(self, reason: str, *, failed: bool = False) -> None:
        """End the run for all nodes, with the reason; `failed` where its work cannot be done any more."""
        self._closed = True
        self._post(Close(reason, failed))

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join the round; at least one if the round is broken and another is needed."""
        return self._member.machine.count_waiting()

    def shutdown(self) -> bool:
        """Close the run, leave it, and release everything."""
        if self._ended is None:
            self.set_closed()
        return self.leave("shut down")

    # -- what a source of rounds has besides ---------------------------------------------------------------------

    #: Restarts are counted for the whole job, by the coordinator.
    counts_restarts = True
    #: Everything is pushed.
    poll_s: float | None = None

    def poll(self) -> None:
        """Everything is pushed."""

    def describe_spec(self, spec: NodeShare) -> None:
        """Take over what this node brings."""
        self.describe_node(role=spec.role, local_world_size=spec.local_world_size)
        self.allow_restarts(spec.max_restarts)

    def release(self, *, signalled: bool = False) -> None:
        """Leave the run, which continues without this node, and release everything."""
        del signalled
        self.leave("its agent has ended")

    @property
    def endpoint(self) -> Endpoint:
        """Where the coordinator is."""
        if self._member.machine.search.is_elsewhere:
            return self._member.endpoint
        return self._host.endpoint if self._host is not None else self._endpoint

    @property
    def elected_by(self) -> Endpoint | None:
        """Where etcd is that elects the coordinator; None if the coordinator has an address for good."""
        return None

    @property
    def secret(self) -> Secret:
        """The shared secret in use."""
        return self._secret

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files in use."""
        return self._tls

    @property
    def node(self) -> str:
        """The name by which the coordinator knows this node."""
        return self._spec.node

    @property
    def min_nodes(self) -> int:
        """How many nodes a round needs."""
        return self._member.machine.settings.min_nodes

    @property
    def max_nodes(self) -> int:
        """How many nodes may take part."""
        return self._member.machine.settings.max_nodes

    @property
    def is_host(self) -> bool:
        """Whether this process carries the coordinator."""
        return self._host is not None and self._host.is_up

    @property
    def place(self) -> Place | None:
        """This node's place in the current round, or in the last one."""
        return self._member.machine.place

    @property
    def ended(self) -> RunEnded | None:
        """How the run ended, once it has."""
        return self._ended

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator can be reached at present."""
        return self._member.machine.is_linked

    def sentence(self) -> str:
        """Say what this node is waiting for."""
        return self._member.machine.sentence()

    def listen_for_peers(self, port: int) -> None:
        """Say on which port the node before this one in a round may connect; counts from the next round on."""
        self._peer_port = port

    def describe_node(self, *, role: str, local_world_size: int, node_rank: int | None = None) -> None:
        """Set what this node brings; counts from the next round on."""
        self._node = replace(
            self._node,
            role=role,
            local_world_size=local_world_size,
            node_rank=self._node.node_rank if node_rank is None else node_rank,
        )

    def next_round(self, cause: Cause | None = None) -> Place:
        """Block until a round is agreed; `cause` says what ended the one before."""
        waiting = self._waiting = queue.SimpleQueue()
        self.ask(cause)
        try:
            outcome = self._wait_outcome(waiting)
        except BaseException:
            # Interrupted while waiting: the others must not wait for a node that has given up.
            self.leave("interrupted")
            raise
        finally:
            self._waiting = None
        if isinstance(outcome, RoundSealed):
            return outcome.place
        raise self.error_of(outcome)

    def ask(self, cause: Cause | None = None, number: int = 0) -> None:
        """Ask for a round and return at once; the answer, with this number, goes to the listeners as an effect."""
        if self._left:
            raise RendezvousGracefulExitError(f"this node has left run '{self._run_id}'")
        if self._ended is not None:
            self._on_effect(self._ended)
            return
        if self._refused is not None:  # to be turned away once is enough
            self._on_effect(AskFailed(self._refused, connected=False, final=True))
            return
        if self._held is not None:
            self._held.close()
        self._held = self._hold_port()
        deadline = time.monotonic() + self._node.join_timeout_s
        self._io.call(self._ask_on_loop, Ask(self._held.port, deadline, cause, number))

    def _hold_port(self) -> HeldPort:
        """Hold the port for rank 0, should it be here; a fixed one may be in use."""
        port = self._node.master_port
        try:
            return HeldPort(port)
        except OSError as error:
            why = f"{error.strerror or error}; free the port, or give another one"
            raise UnavailableError(f"cannot hold port {port} for the workers: {why}") from error

    def would_disturb(self) -> bool:
        """Return whether a round runs that this node would break to get in if it asked now.

        A look from outside, true for the moment: nothing may depend on it but how convenient the moment is.
        """
        settings = self._member.machine.settings
        if self._left or self.is_host or settings.min_nodes == settings.max_nodes:
            return False
        return any(map(self._runs_at, self._known_places()))

    def _known_places(self) -> list[Endpoint]:
        """Return where the coordinator may be: another agent may have taken it over since this host had one."""
        found = self._file.found if self._file is not None else None
        heirs = found.heirs if found is not None else ()
        return [self._endpoint, *(parse_endpoint(heir.address) for heir in heirs[:PEEKS_MAX] if heir.address)]

    def _runs_at(self, endpoint: Endpoint) -> bool:
        tls = self._tls.client_context() if self._tls else None
        try:
            reports = ask_coordinator(endpoint, self._secret.key, self._run_id, tls, PEEK_S)
        except HandshakeError as error:
            if endpoint == self._endpoint:
                self._refused = self._explain(error)
            return False
        except (HoldfastError, TimeoutError):
            return False  # no coordinator is there yet; the ask that follows tells what is the matter
        return any(report["stage"] == Stage.SEALED for report in reports)

    def error_of(self, unanswered: RunEnded | AskFailed) -> RendezvousError:
        """Make the exception of an ask that led to no round."""
        match unanswered:
            case RunEnded(rejected=True):
                return RendezvousStateError(unanswered.reason)
            case RunEnded():
                return RendezvousClosedError(f"run '{self._run_id}' is closed: {unanswered.reason}")
            case AskFailed(final=True):
                where, reason = str(self.endpoint), unanswered.reason
                return RendezvousConnectionError(reason if where in reason else f"cannot talk to {where}: {reason}")
            case AskFailed(connected=False):
                return RendezvousConnectionError(
                    f"no coordinator at {self.endpoint} for run '{self._run_id}': {unanswered.reason}; "
                    "check the endpoint, or start one there with `holdfast serve`"
                )
        return RendezvousTimeoutError(
            f"run '{self._run_id}' did not come together within {self._node.join_timeout_s:g} s: {unanswered.reason}"
        )

    def variables(self, place: Place, workers: int) -> dict[str, str]:
        """Return what workers find in their environment to reach the coordinator; each node has so many workers."""
        variables = {
            ENDPOINT_VARIABLE: str(self.endpoint),
            SPACE_VARIABLE: round_space(self._run_id, place.round),
            MAX_WORKERS_VARIABLE: str(self.max_nodes * workers),
            **self._secret.as_environ(),
        }
        standby = self._member.machine.spec.standby
        if self._member.machine.has_heirs and standby:
            host = place.address or "127.0.0.1"
            variables[STANDBY_VARIABLE] = str(Endpoint(host, int(standby.removeprefix(":"))))
        if self.elected_by is not None:
            variables[ETCD_VARIABLE] = str(self.elected_by)
        return {**variables, **(self._tls.as_environ() if self._tls is not None else {})}

    def allow_restarts(self, max_restarts: int) -> None:
        """Set how many restarts the job may have; counts if this node is the first to join."""
        settings = self._member.machine.settings
        self._member.machine.settings = msgspec.structs.replace(settings, max_restarts=max_restarts)

    def listen(self, listener: Callable[[MemberEffect], None], blocking: object = None) -> None:
        """Call `listener` on the background thread with everything the member learns; it must not block."""
        del blocking  # nothing here blocks the owner
        self._listeners.append(listener)

    def fail(self, cause: Cause) -> None:
        """Tell all nodes at once that this node cannot continue the round."""
        self._post(Fail(cause))

    def replace(self, cause: Cause) -> None:
        """Report that a worker here failed and is being replaced, while the round continues."""
        self._post(Replace(cause))

    def finish(self) -> None:
        """Tell the coordinator that this node's workers have all finished well."""
        self._post(Finish())

    def note(self, text: str) -> None:
        """Show this text beside the node in `holdfast rounds`; an empty text removes it."""
        self._member.machine.note = text

    def count_steps(self, steps: Callable[[], int]) -> None:
        """Have every beat say how many steps this node's workers have made; `steps` is called on the background thread.

        While the others make steps, a node whose beats are late is not taken for lost.
        """
        self._member.count_steps = steps

    def call(self, call: int, topic: str, body: str) -> None:
        """Ask every other node of the round something; the listeners hear `PeerReplied` from those that answer."""
        self._post(PeerCall(call, topic, body))

    def reply(self, called: PeerCalled, body: str) -> None:
        """Answer the call of another node."""
        self._post(PeerReply(called.caller, called.call, body))

    def leave(self, reason: str) -> bool:
        """Leave the run; the others regroup at once, without waiting for a lease to run out."""
        if self._left:
            return True
        self._left = True
        if self._held is not None:
            self._held.close()
            self._held = None
        self._forget_io()
        try:
            self._io.wait(self._goodbye(reason), GOODBYE_S)
        except (TimeoutError, InternalError):
            return False
        return True

    def store(self, *, whole_run: bool = False) -> StoreClient:
        """Return the store of the current round, or of the whole run."""
        space = run_space(self._run_id) if whole_run else self.store_space
        tls = self._tls.client_context() if self._tls else None
        return StoreClient.connect(self.endpoint, space, secret=self._secret.key, tls=tls)

    @property
    def store_space(self) -> str:
        """The name of the present round's keys in the store; of the run's while there is no round."""
        place = self.place
        return run_space(self._run_id) if place is None else round_space(self._run_id, place.round)

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _spec(self) -> NodeSpec:
        return self._member.machine.spec

    def _find_host(self, asked: Endpoint) -> Host | None:
        """Carry the coordinator where the endpoint's address is ours; port 0 is settled here, before anybody asks."""
        told, owned = self._node.is_host, owns_address(asked.host)
        if self._moves:
            standby = Standby(
                asked, self._run_id, self._secret.key, self._tls, owned=owned, node=self._name, file=self._file
            )
            if asked.port == 0:
                self._io.wait(standby.try_open())
            return standby
        if told is False or not (told or owned):
            return None
        host = Host(asked, self._secret.key, self._tls, required=bool(told) or asked.port == 0, owned=owned)
        if asked.port == 0:
            self._io.wait(host.try_open())
        return host

    def _make_member(self, params: RendezvousParameters) -> Member:
        spec = NodeSpec(
            node=self._name,
            host=clean(socket.gethostname()),
            role=self._node.role,
            local_world_size=self._node.local_world_size,
            port=0,
            address=params.local_addr or "",
            node_rank=self._node.node_rank,
            lease_s=self._node.lease_s,
        )
        settings = msgspec.structs.replace(run_settings(params), takeover=self._moves)
        found = self._file.found if self._file is not None else None
        machine = MemberMachine(self._run_id, spec, settings, jitter, str(params.get("guide", "")), found)

        async def make() -> Member:
            return Member(
                machine,
                self._endpoint,
                self._secret.key,
                self._on_effect,
                tls=self._tls.client_context() if self._tls else None,
                host=self._host,
                explain=self._explain,
            )

        return self._io.wait(make())

    def _info(self, place: Place) -> RendezvousInfo:
        master = RendezvousStoreInfo(place.master_addr, place.master_port)
        return RendezvousInfo(self.store(), place.group_rank, place.group_world_size, master)

    def _explain(self, error: PeerError) -> str:
        """Say why the coordinator and this node do not understand each other, and what to do."""
        return self._secret.wrong_at(self.endpoint) if isinstance(error, WrongSecretError) else str(error)

    def _post(self, event: MemberEvent) -> None:
        if not self._left:
            self._io.call(self._member.handle, event)

    def _wait_outcome(self, waiting: queue.SimpleQueue[Outcome]) -> Outcome:
        """Wait for the answer to an ask; the machine's deadline bounds it, and the end of the thread ends it."""
        while True:
            try:
                return waiting.get(timeout=LOOK_S)
            except queue.Empty:
                self._io.check()

    def _on_io_end(self, reason: str) -> None:
        self._on_effect(RunEnded(reason, failed=True))

    def _ask_on_loop(self, ask: Ask) -> None:
        node = self._node
        try:
            self._member.machine.describe(
                role=node.role,
                local_world_size=node.local_world_size,
                node_rank=node.node_rank,
                peer_port=self._peer_port,
            )
        except Exception as error:  # noqa: BLE001 - an ask that is lost here would be waited for until its deadline
            self._member.fail(error)
        self._member.handle(ask)

    async def _goodbye(self, reason: str) -> None:
        self._member.handle(Leave(reason))
        self._member.close()
        if self._host is not None:
            await self._host.close(farewell_of=self._spec.node)

    def _on_effect(self, effect: MemberEffect) -> None:
        """Runs on the background thread."""
        if isinstance(effect, RunEnded):
            self._ended = effect
        if self._waiting is not None and isinstance(effect, RoundSealed | RunEnded | AskFailed):
            self._waiting.put(effect)
        raised: Exception | None = None
        for listener in self._listeners:
            try:
                listener(effect)
            except Exception as error:  # noqa: BLE001 - the others must hear of it first
                raised = raised or error
        if raised is not None:
            raise raised  # which ends the member: a listener that has not heard of a broken round would go on with it


def create_handler(params: RendezvousParameters) -> HoldfastRendezvousHandler:
    """Make the native handler; registered as `holdfast` and, for torchrun's command lines, as `c10d`."""
    return HoldfastRendezvousHandler(params)


def _secret(endpoint: Endpoint, node: NodeSettings) -> Secret:
    alone = node.standalone and endpoint.is_loopback and endpoint.port == 0
    secret = find_secret(node.secret_file, insecure=node.insecure, alone=alone)
    if not secret.key:
        if node.require_secret:
            raise UsageError("--require-secret and --insecure cannot be used together: leave one out")
        facts.warn("open_door", open_door_warning(endpoint))
    return secret
