"""What crosses between the agent and its health process: settings at the start, frames afterwards. Pure.

A frame is a small JSON head and a body of bytes. Both ends are ours and no other process holds the socket, so a
malformed frame is our own mistake.
"""

# Named tuples here and in all that the health process imports: with dataclasses it would take twice as long to start.

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

NO_METRICS = "there are no metrics here: this server was given none"
ANY_HOST = "*"
#: One read of either end takes in so much.
RECV_BYTES = 4096


class Limits(NamedTuple):
    """Every limit of the health server; a client that exceeds one loses its connection."""

    #: Connections at a time; one more closes the one that has been idle longest.
    connections_max: int = 1000
    #: Bytes of a request's line and headers.
    head_bytes_max: int = 8192
    #: How long a client may take to send a request, and to read its answer.
    request_timeout_s: float = 5.0
    #: How long a connection may stay open between requests.
    idle_timeout_s: float = 30.0
    #: How long the agent may take to answer a question.
    answer_timeout_s: float = 2.0
    #: Bytes of its answer.
    answer_bytes_max: int = 16 * 1024 * 1024


class Policy(NamedTuple):
    """What the agent decides for its health process at the start."""

    #: The questions that the agent answers.
    asked: frozenset[str] = frozenset()
    #: The host names that are answered; `*` for all.
    names: frozenset[str] = frozenset([ANY_HOST])
    #: Why there are no metrics, if there are none.
    no_metrics: str = NO_METRICS


class Settings(NamedTuple):
    """All that the health process knows when it starts: the agent's pid, two inherited sockets, and what to answer."""

    agent: int
    control: int
    listener: int
    timeout_s: float
    policy: Policy
    limits: Limits

    def encode(self) -> str:
        """Return the settings as one argument of a command line."""
        policy = self.policy._replace(asked=sorted(self.policy.asked), names=sorted(self.policy.names))  # type: ignore[arg-type]  # JSON has no sets
        return json.dumps({**self._asdict(), "policy": policy._asdict(), "limits": self.limits._asdict()})

    @staticmethod
    def decode(text: str) -> Settings:
        """Read what `encode` wrote."""
        fields = json.loads(text)
        policy, limits = fields.pop("policy"), fields.pop("limits")
        asked, names = frozenset(policy.pop("asked")), frozenset(policy.pop("names"))
        return Settings(**fields, policy=Policy(asked, names, **policy), limits=Limits(**limits))


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
        """Add received bytes and return the frames that are complete now."""
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
