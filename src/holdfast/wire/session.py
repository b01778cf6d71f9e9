"""The session: keys and counters that authenticate every frame of one proven connection. Pure.

Both sides derive one key for each direction from the shared secret and everything that was said in the handshake. Each
frame ends with a message authentication code over its number in that direction, its header and its body. The number is
never sent: each side counts. So a frame that was changed, repeated, left out, sent back, or taken from another
connection has a wrong code, and the connection ends.

Nothing is encrypted: use TLS where others can read the connection.

Hashes of the standard library take longer for long frames than the connection itself. Where both sides have the
package `cryptography`, and have said so in the handshake, frames of some length get a GMAC instead, which processors
compute ten times as fast. Its import takes as long as hashing the first megabytes, so it waits for these; both sides
count them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from hmac import compare_digest as _is_equal

from holdfast.errors import FrameError

MAC_BYTES = 16
#: One key for each direction.
KEY_BYTES = 32

WRONG_MAC = (
    "a message was changed, repeated or lost on the way (its authentication code is wrong): "
    "check what passes this connection on, or use TLS"
)

_LONG = 1 << 63
_pack_number = struct.Struct("!Q").pack
_pack_nonce = struct.Struct("!4xQ").pack
_sha256 = hashlib.sha256


#: A longer frame is hashed by SHA-256 first, and the code is that of its hash.
SHORT_BYTES_MAX = 768
#: Once so many bytes of longer frames were hashed, all further ones get a GMAC, where both sides can.
GMAC_AFTER_BYTES = 16 * 1024 * 1024

#: Computes the code of a frame from its nonce, nothing, and the frame; made from a key.
Gmac = Callable[[bytes, bytes, bytes | memoryview], bytes]
MakeGmac = Callable[[bytes], Gmac]


class Seal:
    """Authenticates the frames of one direction, in their order.

    Keyed BLAKE2b is the fastest keyed hash of the standard library for short messages; the state after the key is
    computed once and copied for each frame. For long ones SHA-256 takes half the time, since processors have
    instructions for it. All are computed over the same bytes: the frame's number, its header and its body.
    """

    __slots__ = ("_copy", "_gmac", "_key", "_left", "_make_gmac", "_number")

    def __init__(self, key: bytes, make_gmac: MakeGmac | None = None) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._make_gmac = make_gmac
        self._copy = hashlib.blake2b(key=key, digest_size=MAC_BYTES).copy
        self._number = 0
        #: How many bytes are hashed before the first GMAC.
        self._left = GMAC_AFTER_BYTES
        self._gmac: Gmac | None = None

    def mac(self, frame: bytes | memoryview) -> bytes:
        """Return the code of the next frame, which is sent right behind it."""
        number = self._number
        self._number = number + 1
        length = len(frame)
        if length <= SHORT_BYTES_MAX:
            keyed = self._copy()
            keyed.update(_pack_number(number))
            keyed.update(frame)
            return keyed.digest()
        if self._gmac is not None:
            return self._gmac(_pack_nonce(number), b"", frame)  # the nonce is the number: no two frames have the same
        # The mark keeps a hash apart from a short frame that has the same bytes.
        keyed = self._copy()
        keyed.update(_pack_number(number | _LONG))
        keyed.update(_sha256(frame).digest())
        self._left -= length
        if self._left <= 0 and self._gmac is None and self._make_gmac is not None:
            self._gmac = self._make_gmac(hashlib.blake2b(b"gmac", key=self._key, digest_size=KEY_BYTES).digest())
        return keyed.digest()

    def check(self, frame: bytes | memoryview, mac: bytes | memoryview) -> None:
        """Check the code of the next frame; raises `FrameError` if it is wrong."""
        if not _is_equal(self.mac(frame), mac):  # in a time that tells nothing of where they differ
            raise FrameError(WRONG_MAC)


class Session:
    """One side's two seals: for what it sends and for what it receives."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self, outgoing_key: bytes, incoming_key: bytes, make_gmac: MakeGmac | None = None) -> None:
        self.outgoing = Seal(outgoing_key, make_gmac)
        self.incoming = Seal(incoming_key, make_gmac)
