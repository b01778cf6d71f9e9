"""Meeting through etcd: it elects the node that runs the coordinator, and another one when that node is gone.

Rounds, leases and the store belong to the coordinator, as always. etcd adds one key for each run, tied to a lease of
etcd's: the node that creates it runs the coordinator, at an address that users need not know before.

The rules:

1. A node takes the key from its holder only if that process is surely gone: this node was connected to it before, and
   now the address refuses connections, several times. A connection that times out proves nothing: the lease does.
   It runs out within `LEASE_S` of the holder's last renewal. So in a partition the half with the holder continues.
2. The holder looks at its key with every renewal. If the key has another's address, the holder steps down: it closes
   its coordinator, and its nodes follow the other one. If the lease has run out and no other node was elected, the
   holder puts its key back.
3. A round is sealed only after a look at the key that began less than `SEAL_S` ago. A node that took the key from
   another seals nothing for `HOLD_S`, which is longer. So two coordinators never seal at the same time, and none seals
   after its lease ended. While etcd is out of reach no round is sealed; everything else continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.driver import Host
from holdfast.rendezvous.etcd_gateway import DEFAULT_PORT, Gateway
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.wire.address import Endpoint, parse_endpoint

if TYPE_CHECKING:
    from holdfast.coordinator.driver import Coordinator
    from holdfast.wire.tls import TlsFiles

#: The key expires this long after its holder's last renewal.
LEASE_S = 6
RENEW_S = 1.5
#: How long etcd may take to answer; several renewals fit into a lease.
TIMEOUT_S = 2.0
#: How recent the holder's look at its key must be when a round is sealed.
SEAL_S = 0.75
#: How long a node that took the key from another seals nothing.
HOLD_S = 1.0
#: How long a permission to seal waits before it looks again.
LOOK_AGAIN_S = 0.2
#: How often, and how far apart, an address must refuse connections before the process there counts as gone.
KNOCKS, KNOCK_PAUSE_S, KNOCK_S = 3, 0.1, 1.0
#: How long a node that ends tries to give its lease back.
REVOKE_S = 1.0
PREFIX = "/holdfast/coordinators/"


class EtcdFollower(Host):
    """Looks up the elected coordinator of a run for each connection, and never runs one."""

    #: A first attempt must not outlast the lease of a holder that is gone; later ones get more time.
    connect_s = 2.0

    def __init__(self, etcd: Endpoint, run: str) -> None:
        super().__init__(Endpoint("", 0), b"", None, required=True, owned=False)
        self._etcd = Gateway(etcd, TIMEOUT_S)
        self._key = f"{PREFIX}{run}"

    async def try_open(self) -> bool:
        """Find which node carries the coordinator; raises `UnavailableError` if none does for now."""
        found = await asyncio.to_thread(self._etcd.read, self._key)
        if found is None:
            raise UnavailableError(f"etcd at {self._etcd.endpoint} has not elected a coordinator yet")
        self.endpoint = _address(found[0])
        return False


@dataclass(slots=True)
class _Trouble:
    """Reports once that etcd is out of reach, and once that it answers again."""

    etcd: Endpoint
    since: float | None = None
    tries: int = field(default=0)

    def note(self, error: UnavailableError) -> None:
        self.tries += 1
        if self.since is None:
            self.since = time.monotonic()
            facts.warn(
                "etcd_unreachable",
                f"etcd is out of reach: {error}; the coordinator here goes on, but forms no round until etcd answers",
                etcd=str(self.etcd),
            )

    def is_over(self) -> None:
        if self.since is not None:
            after_s = time.monotonic() - self.since
            facts.warn(
                "etcd_reachable",
                f"etcd at {self.etcd} answers again after {after_s:.1f} s and {self.tries} failed tries",
                etcd=str(self.etcd),
                tries=self.tries,
            )
        self.since, self.tries = None, 0


class EtcdHost(EtcdFollower):
    """A coordinator that this process may be elected to run."""

    def __init__(self, etcd: Endpoint, run: str, secret: bytes, tls: TlsFiles | None, address: str | None) -> None:
        super().__init__(etcd, run)
        self._secret, self._tls = secret, tls
        self._run = run
        self._address = address
        #: The lease and the revision of our key while this process is the holder; the revision stays after a crash.
        self._lease: int | None = None
        self._revision = 0
        self._hold_until = 0.0
        #: The last coordinator that this node was connected to.
        self._known: Endpoint | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._trouble = _Trouble(etcd)

    @property
    def is_up(self) -> bool:
        """Whether this process was elected and runs the coordinator."""
        return self._coordinator is not None and self._lease is not None

    def reached(self, endpoint: Endpoint) -> None:
        """Note which coordinator this node is connected to."""
        self._known = endpoint

    async def try_open(self) -> bool:
        """Find the node that runs the coordinator, or run it; return whether this process does."""
        while not self.is_up:
            found = await asyncio.to_thread(self._etcd.read, self._key)
            if found is None:
                await self._stand_for_election(0)
                continue
            value, revision = found
            self.endpoint = _address(value)
            if revision != self._revision and not (self.endpoint == self._known and await _is_gone(self.endpoint)):
                return False
            await self._stand_for_election(revision)
        return True

    async def close(self, farewell_of: str = "") -> None:
        """Close the coordinator, and release the key."""
        await self._resign()
        await super().close(farewell_of)

    async def may_seal(self) -> bool:
        """Wait until this process is known to be the holder at this moment; false once it is not any more."""
        while self._lease is not None:
            if (hold_s := self._hold_until - _now()) > 0:
                await asyncio.sleep(hold_s)
                continue
            looked_at = await self._look()
            if looked_at is not None and _now() - looked_at < SEAL_S:
                return True
            await asyncio.sleep(LOOK_AGAIN_S)
        return False

    # -- being elected ---------------------------------------------------------------------------------------------

    async def _stand_for_election(self, revision: int) -> None:
        """Become the holder unless another node is faster; `revision` is that of the key to replace, 0 for none."""
        lease = 0
        try:
            await super()._listen()
            address = self._address if self._address is not None else await asyncio.to_thread(self._etcd.own_address)
            self.endpoint = Endpoint(address, self.endpoint.port)
            lease = await asyncio.to_thread(self._etcd.grant, LEASE_S)
            value = str(self.endpoint).encode()
            mine = await asyncio.to_thread(self._etcd.write_if, self._key, value, revision, lease)
        except BaseException:
            # Without the key the coordinator must not stay: the next attempt would take it for an elected one.
            await self._drop_coordinator()
            if lease:
                await self._revoke(lease)
            raise
        if mine is None:  # another node was quicker
            await self._drop_coordinator()
            await self._revoke(lease)
            return
        if revision not in (0, self._revision):
            self._hold_until = _now() + HOLD_S
        self._lease, self._revision = lease, mine
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    # -- staying so ------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while self._lease is not None:
            await asyncio.sleep(RENEW_S)
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - without renewals the key would be lost without a word
                facts.unexpected("the renewal of the election", error, "the next one is tried all the same")

    async def _look(self) -> float | None:
        """Renew the lease and look at the key; says when the look began if this process still is the holder."""
        async with self._looking:
            lease = self._lease
            if lease is None:
                return None
            looked_at = _now()
            try:
                seconds = await asyncio.to_thread(self._etcd.keep_alive, lease)
                found = await asyncio.to_thread(self._etcd.read, self._key)
                if found is None and seconds == 0:
                    await self._put_back()
            except UnavailableError as error:
                self._trouble.note(error)
                return None
            self._trouble.is_over()
            if found is not None and found[1] != self._revision:
                await self._step_down(found[0])
                return None
            return looked_at if found is not None and seconds > 0 and self._lease is not None else None

    async def _put_back(self) -> None:
        """Take the key again after our lease has run out, unless another node has it by now."""
        lease = await asyncio.to_thread(self._etcd.grant, LEASE_S)
        mine = await asyncio.to_thread(self._etcd.write_if, self._key, str(self.endpoint).encode(), 0, lease)
        if mine is None:
            await self._revoke(lease)  # the next look shows which one
        elif self._lease is not None:
            self._lease, self._revision = lease, mine
            facts.warn("election_renewed", f"etcd had let go of the coordinator of run '{self._run}'; it is back there")

    async def _step_down(self, holder: bytes) -> None:
        """Close the coordinator: another node was elected. Our nodes connect to that one, and so do we."""
        facts.warn(
            "coordinator_deposed",
            f"etcd has elected {holder.decode(errors='backslashreplace')} to carry the coordinator of run "
            f"'{self._run}'; this node follows it",
        )
        lease, self._lease, self._revision = self._lease, None, 0
        if lease is not None:
            await self._revoke(lease)
        await self._drop_coordinator()

    # -- small things ----------------------------------------------------------------------------------------------

    async def _resign(self) -> None:
        """Stop being the holder; from here on nothing is sealed."""
        lease, self._lease, self._revision = self._lease, None, 0
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if lease is not None:
            await self._revoke(lease)

    async def _revoke(self, lease: int) -> None:
        with contextlib.suppress(UnavailableError, TimeoutError):  # it runs out by itself
            await asyncio.wait_for(asyncio.to_thread(self._etcd.revoke, lease), REVOKE_S)

    def _on_crash(self, coordinator: Coordinator) -> None:
        """Let the next attempt open a coordinator anew; the key is still ours then, by its revision."""
        super()._on_crash(coordinator)
        self._lease = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None


class EtcdRendezvousHandler(HoldfastRendezvousHandler):
    """A handler whose endpoint is etcd's. With `is_host=False` it follows the coordinator of the run `elected_for`."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        super().__init__(params)

    @property
    def elected_by(self) -> Endpoint:
        """Where etcd is."""
        asked = parse_endpoint(self._params.endpoint, DEFAULT_PORT)
        return Endpoint(asked.host, asked.port or DEFAULT_PORT)

    def _find_host(self, asked: Endpoint) -> Host:
        del asked
        if self._node.is_host is False:
            return EtcdFollower(self.elected_by, str(self._params.get("elected_for", self._run_id)))
        return EtcdHost(self.elected_by, self._run_id, self._secret.key, self._tls, self._params.local_addr)


def create_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make the handler; registered as `etcd` and, for TorchElastic's command lines, as `etcd-v2`."""
    if ":" not in params.endpoint.rpartition("]")[2]:
        params.endpoint = f"{params.endpoint or 'localhost'}:{DEFAULT_PORT}"
    return EtcdRendezvousHandler(params)


async def _is_gone(endpoint: Endpoint) -> bool:
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


def _address(value: bytes) -> Endpoint:
    text = value.decode(errors="backslashreplace")
    try:
        return parse_endpoint(text)
    except UsageError as error:
        raise UnavailableError(f"etcd holds no address of a coordinator: {error}") from error


def _now() -> float:
    """Seconds that go on while the process is stopped or the host asleep: etcd's lease does too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
