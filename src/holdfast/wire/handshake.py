"""The handshake: each side proves that it knows the shared secret, without sending it. Pure.

    server  Challenge(nonce)          a fresh nonce for every connection, so an old proof is worth nothing
    client  Proof(nonce, purpose)     with a code over all that was said so far, the protocol version included
    server  Welcome(kind) | Refused   with a code over the same and its own kind

The client's purpose is the service that it expects, the run that it belongs to, and, where it dialled a loopback
address, the port. The server refuses a purpose that is not its own, so a program without the secret cannot pass the
handshake on to another service, another run or another port of this machine. Behind a loopback address nothing
translates ports; elsewhere NAT and port maps do, so there the port is not part of the purpose.

All keys come from one root: HMAC-SHA256 of the transcript under the secret. From it keyed BLAKE2b derives the codes of
the handshake and the two keys that authenticate every frame that follows, one for each direction (`session`). A program
in between can therefore pass on, delay or cut what is said, and read it, but not change it; where others must not read,
use TLS.

A run without a secret uses the empty one. Handshake and frames are the same then, and protect from accidents, not from
people.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import msgspec

from holdfast.errors import ConnectionLostError, HandshakeError, WrongSecretError
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import PROTOCOL_VERSION, Message
from holdfast.wire.session import KEY_BYTES, MakeGmac, Session

NONCE_BYTES = 16
#: How long a client waits for a connection and its handshake, and a server for the client's proof.
CONNECT_TIMEOUT_S = 10.0
#: A reason that is longer than this is cut: it must fit into what an unproven peer may send.
REASON_CHARACTERS_MAX = 240

_LABEL = "holdfast wire"
_encode = msgspec.msgpack.Encoder().encode


class Challenge(Message, frozen=True, tag=1):
    """The server's first word on every connection."""

    nonce: bytes
    guarded: bool
    #: Whether this side can compute a GMAC; see `session`.
    gmac: bool = False


class Proof(Message, frozen=True, tag=2):
    """The client's answer, and what it wants."""

    nonce: bytes
    mac: bytes
    service: str
    run: bytes = b""
    port: int = 0
    #: Whether both sides can compute a GMAC, so that both use it.
    gmac: bool = False


class Welcome(Message, frozen=True, tag=3):
    """The server's proof in turn, and what kind of server it says it is."""

    mac: bytes
    kind: str


class Refused(Message, frozen=True, tag=4):
    """The connection ends here, for this reason; `again` where a later try may succeed."""

    reason: str
    again: bool = False
    #: Whether the client's proof was wrong.
    wrong_secret: bool = False


class NotUnderstood(Message, frozen=True, tag=5):
    """The server has ignored a message whose type it does not know."""

    unknown: int


HANDSHAKE_TYPES = (Challenge, Proof, Welcome, Refused, NotUnderstood)

WRONG_SECRET = (
    "the shared secret is wrong: give every node the same --secret-file, or set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET"
)
NO_SECRET = (
    "this coordinator asks for a shared secret and none was given: "
    "use --secret-file, or set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET"
)
UNGUARDED = (
    "this coordinator runs without a shared secret (--insecure), and this node has one: "
    "start all of them with the secret, or all with --insecure"
)
NOT_PROVEN = "the coordinator did not prove the shared secret: another program may listen on its port"


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a connection is for. The empty run and port 0 mean any."""

    service: str
    run: str = ""
    port: int = 0

    @classmethod
    def of(cls, endpoint: Endpoint, service: str, run: str = "") -> Purpose:
        """Return the purpose of a client that dials an endpoint."""
        return cls(service, run, endpoint.port if endpoint.is_loopback else 0)

    @property
    def run_digest(self) -> bytes:
        """Return the run as it is sent: of a fixed length, whatever the name."""
        if not self.run:
            return b""
        return hashlib.blake2b(self.run.encode(errors="surrogatepass"), digest_size=16).digest()

    def objection(self, proof: Proof) -> str | None:
        """Say why a client that has proven the secret is wrong here; None if it is right."""
        if proof.service != self.service:
            return f"this port serves the {self.service}, and the client asked for the {proof.service[:40]}"
        if self.run and proof.run not in (b"", self.run_digest):
            return f"this {self.service} belongs to run '{self.run[:80]}', and the client to another one"
        if proof.port not in (0, self.port):
            return (
                f"the client dialled port {proof.port} of localhost and reached port {self.port}: another program "
                "passes the connection on; free that port, or name the host in place of localhost"
            )
        return None


class ClientHandshake:
    """The client's side: give it every message until `session` is there."""

    __slots__ = ("_make_gmac", "_proof", "_purpose", "_root", "_secret", "kind", "nonce", "session")

    def __init__(self, secret: bytes, purpose: Purpose, nonce: bytes, make_gmac: MakeGmac | None = None) -> None:
        self._secret = secret
        self._make_gmac = make_gmac
        self._purpose = purpose
        self._proof: Proof | None = None
        self._root = b""
        self.nonce = nonce
        self.kind = ""
        self.session: Session | None = None

    @property
    def is_greeted(self) -> bool:
        """Whether the server has said its first word."""
        return self._proof is not None

    def hear(self, message: Message) -> Proof | None:
        """Return what to answer; raises `HandshakeError`, or `ConnectionLostError` where a later try may succeed."""
        if isinstance(message, Refused):
            raise refusal(message)
        if self._proof is None:
            if not isinstance(message, Challenge):
                raise HandshakeError(f"expected a challenge, got {type(message).__name__}")
            gmac = message.gmac and self._make_gmac is not None
            self._proof, self._root = _prove(self._secret, message, self.nonce, self._purpose, gmac=gmac)
            return self._proof
        if not isinstance(message, Welcome):
            raise HandshakeError(f"expected a welcome, got {type(message).__name__}")
        if not hmac.compare_digest(message.mac, _derive(self._root, "server", message.kind)):
            raise WrongSecretError(NOT_PROVEN)
        self.kind = message.kind
        from_client, from_server = _frame_keys(self._root, self._proof, message)
        self.session = Session(from_client, from_server, self._make_gmac if self._proof.gmac else None)
        return None


class ServerHandshake:
    """The server's side: send `challenge`, then give it the answer."""

    __slots__ = ("_kind", "_make_gmac", "_purpose", "_secret", "challenge", "session")

    def __init__(
        self, secret: bytes, purpose: Purpose, nonce: bytes, kind: str = "", make_gmac: MakeGmac | None = None
    ) -> None:
        self._secret = secret
        self._make_gmac = make_gmac
        self._purpose = purpose
        self._kind = kind
        self.challenge = Challenge(nonce, guarded=bool(secret), gmac=make_gmac is not None)
        self.session: Session | None = None

    def hear(self, message: Message) -> Welcome | Refused:
        """Accept or refuse what the client says first; with a `Welcome`, `session` is there."""
        if not isinstance(message, Proof):
            return Refused(f"the handshake comes first, not {type(message).__name__}")
        if len(message.nonce) != NONCE_BYTES:
            return Refused(f"a nonce has {NONCE_BYTES} bytes, not {len(message.nonce)}")
        root = _root(self._secret, self.challenge, message)
        if not hmac.compare_digest(message.mac, _derive(root, "client")):
            return Refused(WRONG_SECRET, wrong_secret=True)
        if message.gmac and self._make_gmac is None:
            return Refused("the client asked for a GMAC, which this side has not offered")
        if objection := self._purpose.objection(message):
            return Refused(objection)
        welcome = Welcome(_derive(root, "server", self._kind), self._kind)
        from_client, from_server = _frame_keys(root, message, welcome)
        self.session = Session(from_server, from_client, self._make_gmac if message.gmac else None)
        return welcome


def prove(secret: bytes, challenge: Challenge, nonce: bytes, purpose: Purpose) -> Proof:
    """Answer a challenge as the client."""
    return _prove(secret, challenge, nonce, purpose)[0]


def _prove(
    secret: bytes, challenge: Challenge, nonce: bytes, purpose: Purpose, *, gmac: bool = False
) -> tuple[Proof, bytes]:
    """Return the answer to a challenge, and the root that it was made with."""
    if len(challenge.nonce) != NONCE_BYTES:
        raise HandshakeError(f"the coordinator sent a nonce of {len(challenge.nonce)} bytes, not {NONCE_BYTES}")
    if challenge.guarded and not secret:
        raise WrongSecretError(NO_SECRET)
    if secret and not challenge.guarded:
        raise HandshakeError(UNGUARDED)
    claim = Proof(nonce, b"", purpose.service, purpose.run_digest, purpose.port, gmac)
    root = _root(secret, challenge, claim)
    return Proof(nonce, _derive(root, "client"), claim.service, claim.run, claim.port, gmac), root


def _root(secret: bytes, challenge: Challenge, proof: Proof) -> bytes:
    """Return the key that only those who know the secret can derive from what both sides have said."""
    said = (
        _LABEL,
        PROTOCOL_VERSION,
        challenge.nonce,
        challenge.guarded,
        challenge.gmac,
        proof.nonce,
        proof.service,
        proof.run,
        proof.port,
        proof.gmac,
    )
    return hmac.digest(secret, _encode(said), "sha256")


def _frame_keys(root: bytes, proof: Proof, welcome: Welcome) -> tuple[bytes, bytes]:
    """Return the keys of frames from the client and of frames from the server."""
    keys = _derive(root, "frames", proof.mac, welcome.mac, size=2 * KEY_BYTES)
    return keys[:KEY_BYTES], keys[KEY_BYTES:]


def _derive(root: bytes, *purpose: str | bytes, size: int = KEY_BYTES) -> bytes:
    # MessagePack writes the length of each part: no two lists of parts give the same bytes.
    return hashlib.blake2b(_encode(purpose), key=root, digest_size=size).digest()


def refusal(refused: Refused) -> HandshakeError | ConnectionLostError:
    """Return the error that a refusal means."""
    if refused.again:
        return ConnectionLostError(refused.reason)
    return WrongSecretError(refused.reason) if refused.wrong_secret else HandshakeError(refused.reason)
