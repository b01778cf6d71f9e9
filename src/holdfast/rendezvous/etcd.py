"""Meeting through etcd: it elects the node that runs the coordinator, and another one when that node is gone.

Rounds, leases and the store belong to the coordinator, as always. etcd adds a key for each run, at which all find the
node that runs the coordinator, and keeps what a successor of that node must know. `election` decides; this drives it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.coordinator.driver import EMBEDDED, Coordinator
from holdfast.coordinator.state import RunRecord
from holdfast.errors import RendezvousConnectionError, RendezvousError, UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.machine import Tick
from holdfast.rendezvous import election_events as e
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.driver import Host
from holdfast.rendezvous.election import LEASE_S, ElectionMachine
from holdfast.rendezvous.etcd_access import EtcdAccess
from holdfast.rendezvous.etcd_gateway import Gateway, delete, put
from holdfast.rendezvous.events import AskFailed, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.typed import learned
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.ports import HeldPort

if TYPE_CHECKING:
    from holdfast.coordinator.messages import Place
    from holdfast.wire.tls import TlsFiles

#: How long one member of etcd may take to answer; several fit into the time that a carrier is trusted.
TIMEOUT_S = 1.5
#: How often, and how far apart, an address must refuse connections before the coordinator there counts as closed.
KNOCKS, KNOCK_PAUSE_S, KNOCK_S = 3, 0.1, 1.0
#: How long a node that ends tries to give its lease back.
REVOKE_S = 1.0
#: Records of a run that all its nodes have left without an end are kept for so long.
RECORD_S = 3600
PREFIX, TERMS, RECORDS = "/holdfast/coordinators/", "/holdfast/terms/", "/holdfast/records/"


class _Value(msgspec.Struct, frozen=True):
    """What the key of a run holds."""

    address: str
    candidate: str
    term: int


class EtcdFollower(Host):
    """Looks up the elected coordinator of a run for each connection, and never runs one."""

    #: A first attempt must not outlast the lease of a carrier that is gone; later ones get more time.
    connect_s = 2.0

    def __init__(self, access: EtcdAccess, run: str) -> None:
        super().__init__(Endpoint("", 0), b"", None, required=True, owned=False)
        self._etcd = Gateway(access, TIMEOUT_S)
        self._key, self._term_key, self._records = f"{PREFIX}{run}", f"{TERMS}{run}", f"{RECORDS}{run}/"

    async def try_open(self) -> bool:
        """Find which node carries the coordinator; raises `UnavailableError` if none does for now."""
        carrier = await asyncio.to_thread(self._read_carrier)
        if carrier is None:
            raise UnavailableError(f"etcd at {self._etcd.access} has not elected a coordinator yet")
        self.endpoint = parse_endpoint(carrier.address)
        return False

    def _read_carrier(self) -> e.Carrier | None:
        return _carrier(self._etcd.read(self._key))


class _EtcdRecords:
    """The records of a carrier's runs: those that its predecessor left, and where its own go."""

    def __init__(self, left: tuple[tuple[str, bytes], ...], keep: Callable[[str, bytes | None], None]) -> None:
        self._left = left
        self._keep = keep

    def load(self) -> dict[str, RunRecord]:
        """Return what the predecessor left; a record that cannot be read is reported and left out."""
        records: dict[str, RunRecord] = {}
        for run, record in self._left:
            try:
                records[run] = msgspec.json.decode(record, type=learned(RunRecord))
            except msgspec.MsgspecError as error:
                facts.warn("record_unreadable", f"the record of run '{run}' in etcd is left out: {error}")
        return records

    def save(self, run: str, record: RunRecord) -> None:
        """Have etcd keep a record; a seal waits for it, nothing else does."""
        self._keep(run, msgspec.json.encode(record))

    def forget(self, run: str) -> None:
        """Have etcd forget a run."""
        self._keep(run, None)


class EtcdHost(EtcdFollower):
    """A coordinator that this process may be elected to run. Everything happens on the background loop."""

    def __init__(self, access: EtcdAccess, run: str, secret: bytes, tls: TlsFiles | None, address: str | None) -> None:
        super().__init__(access, run)
        self._secret, self._tls = secret, tls
        self._run = run
        self._address = address
        self.machine = ElectionMachine(secrets.token_hex(8))
        self._held: HeldPort | None = None
        self._mine = self.endpoint
        self._record_lease = 0
        self._opening = asyncio.Lock()
        self._carry = e.Carry(0)
        #: Whether this process is to carry the coordinator, as the machine last said.
        self._in_office = False
        #: What waits for the answer to a look, and for permissions to seal, by run.
        self._looks: list[asyncio.Future[bool]] = []
        self._permits: dict[str, list[asyncio.Future[bool]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def reached(self, endpoint: Endpoint) -> None:
        """Note which coordinator this node is connected to."""
        del endpoint
        self.handle(e.Reached())

    async def try_open(self) -> bool:
        """Find the node that runs the coordinator, or run it; return whether this process does."""
        look: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._looks.append(look)
        self.handle(e.Look())
        return await look

    async def close(self, farewell_of: str = "") -> None:
        """Close the coordinator, and release the key; from here on nothing is sealed."""
        runs = self._coordinator.machine.runs if self._coordinator is not None else {}
        is_over = self._run in runs and runs[self._run].closed is not None
        self._closed = True
        self.handle(e.Resign(tuple(runs) if is_over else ()))
        self._answer_permits(allowed=False)
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=REVOKE_S)
        for task in self._tasks:
            task.cancel()
        await super().close(farewell_of)
        self._release_port()

    async def may_seal(self, run: str, record: RunRecord) -> bool:
        """Wait until etcd has confirmed that this process may seal a round; false once it is not the carrier."""
        permit: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._permits.setdefault(run, []).append(permit)
        self.handle(e.AskPermit(run, msgspec.json.encode(record)))
        return await permit

    # -- the machine -----------------------------------------------------------------------------------------------

    def handle(self, event: e.ElectionEvent) -> None:
        """Hand an event to the machine and carry out what it answers."""
        for effect in self.machine.handle(event, _now()):
            self._perform(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self.machine.wakeup()
        if when is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(when - _now(), 0.0), self.handle, Tick())

    def _perform(self, effect: e.ElectionEffect) -> None:
        match effect:
            case e.ReadKey():
                self._ask(effect.ask, self._read_key, effect)
            case e.Stand():
                self._ask(effect.ask, self._stand, effect)
            case e.Renew():
                self._ask(effect.ask, self._renew, effect)
            case e.Write():
                self._ask(effect.ask, self._write, effect)
            case e.Revoke():
                self._start(self._revoke(effect))
            case e.Knock():
                self._start(self._knock(effect))
            case e.Carry():
                self._in_office = True
                self._start(self._open(effect))
            case e.Follow():
                self.endpoint = parse_endpoint(effect.address)
                self._answer_looks(carries=False)
            case e.LookFailed():
                self._answer_looks(error=UnavailableError(effect.reason))
            case e.Permit():
                for permit in self._permits.pop(effect.run, []):
                    _answer(permit, result=effect.allowed)
            case e.StepDown():
                self._step_down(effect)
            case e.EtcdAway():
                self._tell_away(effect)
            case e.EtcdBack():
                sentence = f"etcd at {self._etcd.access} answers again after {effect.away_s:.1f} s"
                facts.warn("etcd_reachable", f"{sentence} and {effect.tries} failed tries", tries=effect.tries)

    # -- questions to etcd -----------------------------------------------------------------------------------------

    def _ask(self, ask: int, question: Callable[[Any], e.ElectionEvent], effect: Any) -> None:
        self._start(self._answered(ask, question, effect))

    async def _answered(self, ask: int, question: Callable[[Any], e.ElectionEvent], effect: Any) -> None:
        try:
            event = await asyncio.to_thread(question, effect)
        except UnavailableError as error:
            event = e.EtcdFailed(ask, str(error))
        except OSError as error:  # no port, or no thread for the question
            event = e.EtcdFailed(ask, f"cannot ask etcd: {error}")
        except Exception as error:  # noqa: BLE001 - an answer that never comes would be waited for until a timeout
            facts.unexpected("a question to etcd", error, "it counts as unanswered")
            event = e.EtcdFailed(ask, f"internal error: {error!r}")
        self.handle(event)

    def _read_key(self, effect: e.ReadKey) -> e.KeyRead:
        key, term = self._etcd.read_all(self._key, self._term_key)
        return e.KeyRead(effect.ask, _carrier(key), _term(term), term[1] if term is not None else 0)

    def _stand(self, stand: e.Stand) -> e.Elected | e.NotElected:
        if self._held is None:
            self._held = _hold(self._bound.port)
        address = self._address if self._address is not None else self._etcd.own_address()
        mine = self._mine = Endpoint(address, self._held.port)
        lease, self._record_lease = self._etcd.grant(LEASE_S), self._etcd.grant(RECORD_S)
        value = msgspec.json.encode(_Value(str(mine), self.machine.candidate, stand.term))
        writes = [put(self._key, value, lease), put(self._term_key, str(stand.term).encode())]
        found = self._etcd.transact(
            {self._key: stand.revision, self._term_key: stand.term_revision}, writes, self._records
        )
        if found is None:
            self._etcd.revoke(lease)
            return e.NotElected(stand.ask)
        records = tuple((key.removeprefix(self._records), record) for key, record in found[1])
        return e.Elected(stand.ask, lease, found[0], records)

    def _renew(self, renew: e.Renew) -> e.Renewed:
        seconds = self._etcd.keep_alive(renew.lease)
        self._etcd.keep_alive(self._record_lease)
        return e.Renewed(renew.ask, seconds, self._read_carrier())

    def _write(self, write: e.Write) -> e.Written | e.NotWritten:
        key = f"{self._records}{write.run}"
        change = delete(key) if write.record is None else put(key, write.record, self._record_lease)
        done = self._etcd.transact({self._key: write.revision}, [change])
        return e.NotWritten(write.ask) if done is None else e.Written(write.ask)

    async def _revoke(self, revoke: e.Revoke) -> None:
        def act() -> None:
            if revoke.forget:
                gone = [delete(f"{self._records}{run}") for run in revoke.forget]
                self._etcd.transact({self._key: revoke.revision}, [*gone, delete(self._term_key)])
            self._etcd.revoke(revoke.lease)

        try:
            await asyncio.wait_for(asyncio.to_thread(act), REVOKE_S)
        except (UnavailableError, TimeoutError):
            pass  # it runs out by itself

    async def _knock(self, knock: e.Knock) -> None:
        self.handle(e.Knocked(knock.ask, await _is_closed(parse_endpoint(knock.address))))

    # -- the coordinator -------------------------------------------------------------------------------------------

    def _make_coordinator(self) -> Coordinator:
        return Coordinator(
            self._secret,
            records=_EtcdRecords(self._carry.records, lambda run, record: self.handle(e.KeepRecord(run, record))),
            kind=EMBEDDED,
            on_crash=self._on_crash,
            may_seal=self.may_seal,
            awaits_carrier=not self._carry.alone,
        )

    async def _open(self, carry: e.Carry) -> None:
        async with self._opening:
            if self._coordinator is None and not self._closed and self._in_office:
                self._carry, self.endpoint, self._bound = carry, self._mine, Endpoint("", self._mine.port)
                try:
                    await self._listen()
                except UnavailableError as error:
                    self._give_up_office()
                    self._answer_looks(error=error)
                    return
                finally:
                    self._release_port()
        self._answer_looks(carries=True)

    def _step_down(self, step: e.StepDown) -> None:
        """Close the coordinator; our nodes look for the next one, and so do we."""
        kind = "coordinator_deposed" if step.deposed else "election_lost"
        facts.warn(kind, f"this node no longer carries the coordinator of run '{self._run}': {step.reason}")
        self._in_office = False
        self._answer_permits(allowed=False)
        self._start(self._drop_coordinator())

    def _on_crash(self, coordinator: Coordinator) -> None:
        """Let the next look open a coordinator anew; the key is still ours then."""
        super()._on_crash(coordinator)
        self._answer_permits(allowed=False)
        self._give_up_office()

    def _give_up_office(self) -> None:
        self._in_office = False
        self.handle(e.CarriedAway())

    def _tell_away(self, away: e.EtcdAway) -> None:
        then = "the coordinator here goes on, but forms no round until etcd answers" if self.is_up else "trying again"
        facts.warn("etcd_unreachable", f"etcd is out of reach: {away.reason}; {then}")

    # -- small things ----------------------------------------------------------------------------------------------

    def _answer_looks(self, *, carries: bool = False, error: UnavailableError | None = None) -> None:
        looks, self._looks = self._looks, []
        for look in looks:
            _answer(look, result=carries, error=error)

    def _answer_permits(self, *, allowed: bool) -> None:
        permits, self._permits = self._permits, {}
        for waiting in permits.values():
            for permit in waiting:
                _answer(permit, result=allowed)

    def _release_port(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _start(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            facts.unexpected("the election", error, "this node looks for the coordinator again")
            self._answer_looks(error=UnavailableError(f"internal error: {error!r}"))


class EtcdRendezvousHandler(HoldfastRendezvousHandler):
    """A handler whose endpoint is etcd's. With `is_host=False` it follows the coordinator of the run `elected_for`."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._access = EtcdAccess.of(params)
        self._elected_for = str(params.get("elected_for", params.run_id))
        self._local_addr = params.local_addr
        params.endpoint = str(self._access.endpoints[0])
        super().__init__(params)
        # An outage of etcd is no reason to give up: the workers of all nodes may be well.
        self._member.machine.waits_on = True

    @property
    def elected_by(self) -> Endpoint:
        """Where etcd is, or its first member."""
        return self._access.endpoints[0]

    def variables(self, place: Place, workers: int) -> dict[str, str]:
        """Return what workers find in their environment to reach etcd, and the coordinator of the moment."""
        return {**super().variables(place, workers), **self._access.as_environ()}

    def error_of(self, unanswered: RunEnded | AskFailed) -> RendezvousError:
        """Make the exception of an ask that led to no round."""
        if isinstance(unanswered, AskFailed) and not unanswered.connected and not unanswered.final:
            return RendezvousConnectionError(
                f"no coordinator for run '{self._run_id}': {unanswered.reason}; check that etcd runs at {self._access}"
            )
        return super().error_of(unanswered)

    def _find_host(self, asked: Endpoint) -> Host:
        del asked
        if self._node.is_host is False:
            return EtcdFollower(self._access, self._elected_for)
        return EtcdHost(self._access, self._run_id, self._secret.key, self._tls, self._local_addr)


def create_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make the handler; registered as `etcd` and, for TorchElastic's command lines, as `etcd-v2`."""
    return EtcdRendezvousHandler(params)


async def _is_closed(endpoint: Endpoint) -> bool:
    """Whether no process listens at an address any more: it refuses connections, every time."""
    for knock in range(KNOCKS):
        if knock:
            await asyncio.sleep(KNOCK_PAUSE_S)
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(endpoint.host, endpoint.port), KNOCK_S)
        except ConnectionRefusedError:
            continue
        except (OSError, TimeoutError):
            return False  # a lost packet or a cut cable says nothing of the process
        writer.close()
        return False
    return True


def _hold(port: int) -> HeldPort:
    """Hold the port that the others know, or another one if it was taken meanwhile."""
    try:
        return HeldPort(port)
    except OSError:
        return HeldPort()


def _carrier(found: tuple[bytes, int] | None) -> e.Carrier | None:
    if found is None:
        return None
    try:
        value = msgspec.json.decode(found[0], type=learned(_Value))
        parse_endpoint(value.address)
    except (msgspec.MsgspecError, UsageError) as error:
        raise UnavailableError(f"etcd holds no address of a coordinator: {error}") from error
    return e.Carrier(value.address, value.candidate, value.term, found[1])


def _term(found: tuple[bytes, int] | None) -> int:
    try:
        return 0 if found is None else int(found[0])
    except ValueError as error:
        raise UnavailableError(f"etcd holds no number of a term: {error}") from error


def _answer(future: asyncio.Future[bool], *, result: bool, error: UnavailableError | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _now() -> float:
    """Seconds that go on while the process is stopped or the host asleep: etcd's lease does too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
