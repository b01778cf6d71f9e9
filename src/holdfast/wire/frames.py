"""Frames: how messages lie in a stream of bytes. Pure.

A frame is an eight-byte header and a MessagePack body:

    'H' 'F'   version (1 byte)   reserved, zero (1 byte)   body length (4 bytes, big endian)

The header is checked before one byte of the body is kept, so neither garbage nor a huge length can make us
store anything. A message is a tagged struct; what does not decode into exactly one of the agreed types is refused.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import FrameError
from holdfast.text import clean_data

PROTOCOL_VERSION = 1
#: What a proven peer may send in one frame. Store values travel in frames, so this bounds them too.
FRAME_BYTES_MAX = 64 * 1024 * 1024
#: What a stranger may send before it has proven the secret.
HELLO_BYTES_MAX = 1024

_MAGIC = b"HF"
_HEADER = struct.Struct("!2sBBI")
HEADER_BYTES = _HEADER.size


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of everything that crosses a connection; each type sets its own integer `tag`."""


M = TypeVar("M", bound=Message)


class FrameReader:
    """Cuts a stream of bytes into frame bodies; raises `FrameError` on the first byte that cannot be ours."""

    __slots__ = ("_buffer", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        # Only an unfinished frame is ever kept, so an idle connection holds no buffer.
        self._buffer: bytearray | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and return the bodies that are complete now."""
        if self._buffer is not None:
            self._buffer += data
            data = bytes(self._buffer) if self._complete(self._buffer) else b""
            if not data:
                return []
            self._buffer = None
        bodies: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= HEADER_BYTES:
            stop = start + HEADER_BYTES + self._body_bytes(data, start)
            if stop > end:
                break
            bodies.append(data[start + HEADER_BYTES : stop])
            start = stop
        if start < end:
            rest = bytearray(data[start:])
            if len(rest) < HEADER_BYTES:
                _check_magic(rest)
            self._buffer = rest
        return bodies

    def _complete(self, buffer: bytearray) -> bool:
        if len(buffer) < HEADER_BYTES:
            _check_magic(buffer)
            return False
        return len(buffer) >= HEADER_BYTES + self._body_bytes(buffer, 0)

    def _body_bytes(self, data: bytes | bytearray, start: int) -> int:
        magic, version, reserved, length = _HEADER.unpack_from(data, start)
        if magic != _MAGIC or reserved:
            raise FrameError("the bytes are not Holdfast frames; something else is talking to this port")
        if version != PROTOCOL_VERSION:
            raise FrameError(
                f"the other side speaks protocol version {version}, this side {PROTOCOL_VERSION}: "
                "install the same holdfast version on every node"
            )
        if length > self.bytes_max:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self.bytes_max}")
        return int(length)


def _check_magic(start: bytes | bytearray) -> None:
    if not _MAGIC.startswith(bytes(start[:2])):
        raise FrameError("the bytes are not Holdfast frames; something else is talking to this port")


class Codec(Generic[M]):
    """Turns messages of an agreed set of types into frames and frame bodies back into messages."""

    def __init__(self, *types: type[M]) -> None:
        union: Any = types[0]
        for each in types[1:]:
            union = union | each
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        """Return the whole frame for one message."""
        try:
            body = self._encoder.encode(message)
        except UnicodeEncodeError:
            # Text is made clean where it comes in. A message that still holds a surrogate must not be lost for it.
            plain = msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview))
            body = self._encoder.encode(clean_data(plain))
        return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, 0, len(body)) + body

    def decode(self, body: bytes) -> M:
        """Return the message in a frame body, or raise `FrameError`."""
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a frame does not hold a known message: {error}") from None
