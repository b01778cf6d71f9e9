"""The handshake: each side proves that it knows the shared secret, without sending it. Pure.

    server  Challenge(nonce)          a fresh nonce for every connection, so an old proof is worth nothing
    client  Proof(nonce, mac)         mac = HMAC-SHA256(secret, "client" + server nonce + client nonce)
    server  Welcome(mac) | Refused    mac = HMAC-SHA256(secret, "server" + client nonce + server nonce)

A run without a secret uses the empty one; the handshake then keeps accidents out, not people. What follows the
handshake is not signed: where somebody may sit on the wire itself, use TLS.
"""

from __future__ import annotations

import hashlib
import hmac

from holdfast.errors import HandshakeError, WrongSecretError
from holdfast.wire.frames import Message

NONCE_BYTES = 16


class Challenge(Message, frozen=True, tag=1):
    """The server's first word on every connection."""

    nonce: bytes
    guarded: bool


class Proof(Message, frozen=True, tag=2):
    """The client's answer."""

    nonce: bytes
    mac: bytes


class Welcome(Message, frozen=True, tag=3):
    """The server's proof in turn, and what kind of server it says it is."""

    mac: bytes
    kind: str


class Refused(Message, frozen=True, tag=4):
    """The connection ends here, for this reason."""

    reason: str


HANDSHAKE_TYPES = (Challenge, Proof, Welcome, Refused)

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


def prove(secret: bytes, challenge: Challenge, nonce: bytes) -> Proof:
    """Answer a challenge as the client."""
    if len(challenge.nonce) != NONCE_BYTES:
        raise HandshakeError(f"the coordinator sent a nonce of {len(challenge.nonce)} bytes, not {NONCE_BYTES}")
    if challenge.guarded and not secret:
        raise WrongSecretError(NO_SECRET)
    if secret and not challenge.guarded:
        raise HandshakeError(UNGUARDED)
    return Proof(nonce, _mac(secret, b"client", challenge.nonce, nonce))


def judge(secret: bytes, challenge: Challenge, proof: Proof, kind: str = "") -> Welcome | Refused:
    """Accept or refuse a client's proof as the server."""
    if len(proof.nonce) != NONCE_BYTES:
        return Refused(f"a nonce has {NONCE_BYTES} bytes, not {len(proof.nonce)}")
    if not hmac.compare_digest(proof.mac, _mac(secret, b"client", challenge.nonce, proof.nonce)):
        return Refused(WRONG_SECRET)
    return Welcome(_mac(secret, b"server", proof.nonce, challenge.nonce), kind)


def verify(secret: bytes, challenge: Challenge, proof: Proof, answer: Message) -> Welcome:
    """Check the server's answer as the client; raises `HandshakeError` with the reason."""
    if isinstance(answer, Refused):
        raise refusal(answer)
    if not isinstance(answer, Welcome):
        raise HandshakeError(f"expected a welcome, got {type(answer).__name__}")
    if not hmac.compare_digest(answer.mac, _mac(secret, b"server", proof.nonce, challenge.nonce)):
        raise WrongSecretError("the coordinator did not prove the shared secret; it may belong to another user")
    return answer


def refusal(refused: Refused) -> HandshakeError:
    """Return the error that a refusal means."""
    return WrongSecretError(refused.reason) if refused.reason == WRONG_SECRET else HandshakeError(refused.reason)


def _mac(secret: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, side + first + second, hashlib.sha256)
