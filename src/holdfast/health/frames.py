"""Frames between the agent and its porter: a small JSON head and a body of bytes. Pure.

Both ends are ours and nobody else holds the socket, so a malformed frame is our own mistake.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTHS = struct.Struct("!II")


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    text = json.dumps(head).encode()
    return b"".join((_LENGTHS.pack(len(text), len(body)), text, body))


class FrameCutter:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Take in what arrived and return the frames that are complete now."""
        self._buffer += data
        found = []
        while len(self._buffer) >= _LENGTHS.size:
            head_bytes, body_bytes = _LENGTHS.unpack_from(self._buffer)
            middle = _LENGTHS.size + head_bytes
            end = middle + body_bytes
            if len(self._buffer) < end:
                break
            found.append((json.loads(self._buffer[_LENGTHS.size : middle]), bytes(self._buffer[middle:end])))
            del self._buffer[:end]
        return found
