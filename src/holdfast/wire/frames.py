"""Frames: how messages lie in a stream of bytes. Pure.

A frame is an eight-byte header, a MessagePack body and, once both sides have proven the secret, an authentication code:

    'H' 'F'   version (1 byte)   reserved, zero (1 byte)   body length (4 bytes, big endian)   body   code (16 bytes)

The header is checked before one byte of the body is kept, so neither garbage nor a huge length can make us
store anything. A message is a tagged struct; what does not decode into exactly one of the agreed types is refused, and
a type that this version does not know is told apart from garbage (`UnknownMessageError`).
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import FrameError, UnknownMessageError
from holdfast.text import clean_data
from holdfast.typed import learned
from holdfast.wire.session import MAC_BYTES, SHORT_BYTES_MAX, Seal

PROTOCOL_VERSION = 2
#: What a proven peer may send in one frame. Store values travel in frames, so this bounds them too.
FRAME_BYTES_MAX = 64 * 1024 * 1024
#: What a peer may send before it has proven the secret.
HELLO_BYTES_MAX = 1024

_MAGIC = b"HF"
#: How every TLS connection begins.
_TLS_HANDSHAKE = b"\x16\x03"
#: The first four bytes of every frame, read as one number: they are compared at once.
_START = int.from_bytes(_MAGIC + bytes((PROTOCOL_VERSION, 0)), "big")
_HEADER = struct.Struct("!II")
_pack_header, _unpack_header = _HEADER.pack, _HEADER.unpack_from
HEADER_BYTES = _HEADER.size
_FRAME_BYTES_MIN = HEADER_BYTES + MAC_BYTES


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of everything that crosses a connection; each type sets its own integer `tag`."""


M = TypeVar("M", bound=Message)


class FrameReader:
    """Cuts a stream of bytes into frame bodies; raises `FrameError` on the first byte that cannot be ours.

    A `stepwise` reader gives one body at a time, and keeps the rest for the next `feed`, until `authenticate` gives it
    the seal that all further frames must bear: the frame that ends a handshake may arrive together with what follows.
    """

    __slots__ = ("_buffer", "_seal", "_stepwise", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX, *, stepwise: bool = False) -> None:
        self.bytes_max = bytes_max
        self._stepwise = stepwise
        self._seal: Seal | None = None
        # Only an unfinished frame is ever kept, so an idle connection holds no buffer.
        self._buffer: bytearray | None = None

    @property
    def is_midway(self) -> bool:
        """Whether a frame has begun and not ended: a connection that closes now was cut off."""
        return self._buffer is not None

    def authenticate(self, seal: Seal, bytes_max: int) -> None:
        """Ask every further frame for its authentication code; raises `FrameError` on the first wrong one."""
        self._seal = seal
        self._stepwise = False
        self.bytes_max = bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and return the bodies that are complete now."""
        seal = self._seal
        if (
            seal is not None
            and self._buffer is None
            and _FRAME_BYTES_MIN <= len(data) <= SHORT_BYTES_MAX
            and _FRAME_BYTES_MIN + self._body_bytes(data, 0) == len(data)
        ):
            # One short frame, whole and alone: so it nearly always is.
            frame = data[:-MAC_BYTES]
            seal.check(frame, data[-MAC_BYTES:])
            return [frame[HEADER_BYTES:]]
        return self._cut(data, seal)

    def _cut(self, data: bytes, seal: Seal | None) -> list[bytes]:
        if self._buffer is not None:
            self._buffer += data
            if not self._complete(self._buffer):
                return []
            data, self._buffer = self._buffer, None  # type: ignore[assignment]
        view: Any = data
        if len(data) > SHORT_BYTES_MAX or type(data) is not bytes:
            view = memoryview(data)  # slices of it are not copied
        bodies: list[bytes] = []
        tail = 0 if seal is None else MAC_BYTES
        start, end = 0, len(data)
        while end - start >= HEADER_BYTES:
            head = start + HEADER_BYTES
            stop = head + self._body_bytes(data, start)
            if stop + tail > end:
                break
            if seal is not None:
                seal.check(view[start:stop], view[stop : stop + tail])
            bodies.append(view[head:stop] if view is data else bytes(view[head:stop]))
            start = stop + tail
            if self._stepwise:
                break
        if start < end:
            rest = bytearray(view[start:])
            if len(rest) < HEADER_BYTES:
                _check_magic(rest)
            self._buffer = rest
        return bodies

    def _complete(self, buffer: bytearray) -> bool:
        if len(buffer) < HEADER_BYTES:
            _check_magic(buffer)
            return False
        tail = 0 if self._seal is None else MAC_BYTES
        return len(buffer) >= HEADER_BYTES + self._body_bytes(buffer, 0) + tail

    def _body_bytes(self, data: bytes | bytearray, start: int) -> int:
        first, length = _unpack_header(data, start)
        if first != _START:
            raise FrameError(_objection(first))
        if length > self.bytes_max:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self.bytes_max}")
        return length  # type: ignore[no-any-return]


def _objection(first: int) -> str:
    """Say what is wrong with the first four bytes of a frame."""
    magic, version, reserved = first >> 16, first >> 8 & 0xFF, first & 0xFF
    if magic != int.from_bytes(_MAGIC, "big") or reserved:
        return _name_bytes(magic.to_bytes(2, "big"))
    return (
        f"the other side speaks protocol version {version}, this side {PROTOCOL_VERSION}: "
        "install the same holdfast version on every node"
    )


def _check_magic(start: bytes | bytearray) -> None:
    if not _MAGIC.startswith(bytes(start[:2])):
        raise FrameError(_name_bytes(start))


def _name_bytes(start: bytes | bytearray) -> str:
    """Say what bytes are that begin no frame."""
    if bytes(start[:2]) == _TLS_HANDSHAKE:
        return "the other side speaks TLS, and this side does not: give both --tls-* options, or none"
    return "the bytes are not Holdfast frames; something else is talking to this port"


class Codec(Generic[M]):
    """Turns messages of an agreed set of types into frames and frame bodies back into messages.

    `service` names what speaks this language, which both sides of a connection must agree on.
    """

    def __init__(self, *types: type[M], service: str) -> None:
        union: Any = types[0]
        for each in types[1:]:
            union = union | each
        self.service = service
        self._tags = frozenset(each.__struct_config__.tag for each in types)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(learned(union))
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        """Return the whole frame for one message, but for its authentication code."""
        try:
            body = self._encoder.encode(message)
        except UnicodeEncodeError:
            # Text is made clean where it comes in. A message that still holds a surrogate must not be lost for it.
            plain = msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview))
            body = self._encoder.encode(clean_data(plain))
        return _pack_header(_START, len(body)) + body

    def decode(self, body: bytes) -> M:
        """Return the message in a body; raises `UnknownMessageError` for an unknown type, else `FrameError`."""
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            tag = _tag_of(body)
            if tag is not None and tag not in self._tags:
                raise UnknownMessageError(tag) from None
            raise FrameError(f"a frame does not hold a known message: {error}") from None


_parts: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(learned(list[msgspec.Raw]))
_tag: msgspec.msgpack.Decoder[int] = msgspec.msgpack.Decoder(learned(int))


def _tag_of(body: bytes) -> int | None:
    """Return the tag of a message whatever its type; None if the body is no message at all."""
    try:
        parts = _parts.decode(body)
        return _tag.decode(parts[0]) if parts else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class UnknownTags:
    """Remembers which unknown tags were reported, so that each is reported once."""

    __slots__ = ("_seen",)

    #: Further tags are not reported: a peer that sends so many is not just newer.
    TAGS_MAX = 16

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def is_new(self, tag: int) -> bool:
        """Return whether a tag is seen for the first time and should be reported."""
        if tag in self._seen or len(self._seen) >= self.TAGS_MAX:
            return False
        self._seen.add(tag)
        return True
