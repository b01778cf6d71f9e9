"""The garbage mill: grinds real frames into frames that no correct peer sends. Same seed, same garbage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.coordinator.messages import CODEC, Join
from holdfast.wire.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, PROTOCOL_VERSION
from holdfast.wire.handshake import NONCE_BYTES, Challenge, Proof, Purpose, prove
from holdfast.wire.session import MAC_BYTES

RANDOM_BYTES_MAX = 400
DEEP = 50_000
FOREIGN = (
    b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    b"*1\r\n$4\r\nPING\r\n",
)
#: What a leaf of a message is replaced by, whatever it was; the names are those of no run that a bench holds dear.
ABSURD: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    1e300,
    -1e300,
    -1.0,
    0,
    -1,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    "",
    "/",
    "../../escape",
    "new\nline\x1b[31m",
    "\x00",
    "x" * 5000,
    b"",
    b"\xff" * 1000,
    None,
    True,
    [],
    {},
    [[]] * 50,
    {"deep": [[[[[[]]]]]]},
)

#: Kinds that a proven peer sends without the code that would belong to them.
WRONG_CODE = "a message with a wrong code"
UNSEALED = frozenset(("random bytes", "other protocols", "cut short", "half a frame, left open", WRONG_CODE))

#: Where a `Join` has its run, behind its tag.
_JOIN_RUN = 1 + Join.__struct_fields__.index("run")

Grind = Callable[[Challenge], bytes]


class Mill:
    """Makes garbage out of captured frame bodies.

    Each kind of garbage takes the challenge of the connection it is meant for, since a wrong or an old answer to it is
    garbage too. `half` kinds are whole only when more bytes follow, which never do.
    """

    def __init__(self, bodies: list[bytes], seed: int) -> None:
        assert bodies
        self._random = random.Random(seed)
        #: By type of message, so that what is said often does not crowd out what is said once.
        self._bodies: dict[str, list[bytes]] = {}
        for body in bodies:
            self._bodies.setdefault(type(CODEC.decode(body)).__name__, []).append(body)
        assert Proof.__name__ in self._bodies, "the captured frames hold no proof to replay"
        anybody: dict[str, Grind] = {
            "random bytes": self._random_bytes,
            "other protocols": self._foreign,
            "a random body": self._random_body,
            "flipped bits": self._flipped,
            "cut short": self._cut,
            "a wrong length": self._wrong_length,
            "a huge length": self._huge_length,
            "a wrong tag": self._wrong_tag,
            "a wrong version": self._wrong_version,
            "an absurd value": self._absurd,
            "nested deep": self._deep,
            "half a frame, left open": self._cut,
        }
        self.unproven: dict[str, Grind] = {
            **anybody,
            "a message before the proof": self._message,
            "a replayed proof": self._replayed,
            "a wrong secret": self._wrong_secret,
        }
        self.proven: dict[str, Grind] = {
            **anybody,
            WRONG_CODE: self._wrong_code,
            "a replayed message": self._message,
            "an absurd join": self._absurd_join,
        }

    def choose(self, kinds: dict[str, Grind]) -> str:
        """Pick a kind."""
        return self._random.choice(list(kinds))

    # -- the kinds ---------------------------------------------------------------------------------------------

    def _random_bytes(self, _: Challenge) -> bytes:
        return self._random.randbytes(self._random.randint(1, RANDOM_BYTES_MAX))

    def _foreign(self, _: Challenge) -> bytes:
        return self._random.choice(FOREIGN)

    def _random_body(self, challenge: Challenge) -> bytes:
        return frame(self._random_bytes(challenge))

    def _flipped(self, _: Challenge) -> bytes:
        data = bytearray(self._whole())
        for _ in range(self._random.choice((1, 1, 1, 2, 8))):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(data)

    def _cut(self, _: Challenge) -> bytes:
        data = self._whole()
        return data[: self._random.randrange(1, len(data))]

    def _wrong_length(self, _: Challenge) -> bytes:
        body = self._body()
        return frame(body, length=max(len(body) + self._random.choice((-5, -1, 1, 7, 300)), 0))

    def _huge_length(self, _: Challenge) -> bytes:
        lengths = (HELLO_BYTES_MAX + 1, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1)
        return frame(self._body(), length=self._random.choice(lengths))

    def _wrong_tag(self, _: Challenge) -> bytes:
        values = self._values()
        values[0] = self._random.choice((-1, 0, 1, 3, 9, 10, 16, 19, 21, 25, 39, 42, 60, 70, 99, 2**40, "10", None))
        return frame(msgspec.msgpack.encode(values))

    def _wrong_version(self, _: Challenge) -> bytes:
        others = [version for version in range(256) if version != PROTOCOL_VERSION]
        return frame(self._body(), version=self._random.choice(others))

    def _absurd(self, _: Challenge) -> bytes:
        """Replace one value of a real message; often the result is a message of the right types."""
        return self._absurd_of(self._values())

    def _absurd_join(self, _: Challenge) -> bytes:
        """Do the same to a node's first word, of which the coordinator believes the most."""
        values = msgspec.msgpack.decode(self._random.choice(self._bodies[Join.__name__]))
        if self._random.random() < 0.5:
            values[_JOIN_RUN] = f"never heard of {self._random.randrange(10**9)}"  # where it is the first to join
        return self._absurd_of(values)

    def _absurd_of(self, values: list[Any]) -> bytes:
        holder, place = self._random.choice(list(_leaves(values))[1:] or [(values, 0)])  # the first one is the tag
        holder[place] = self._absurd_like(holder[place])
        return frame(msgspec.msgpack.encode(values))

    def _absurd_like(self, value: Any) -> Any:
        """Return an absurd value, mostly one of the same type, which gets past the decoder."""
        if isinstance(value, bool) or self._random.random() < 0.2:
            return self._random.choice(ABSURD)
        if isinstance(value, str) and self._random.random() < 0.2:
            return f"never heard of {self._random.randrange(10**9)}"
        number = isinstance(value, int | float)
        alike = [each for each in ABSURD if isinstance(each, int | float if number else type(value))]
        return self._random.choice(alike or ABSURD)

    def _deep(self, _: Challenge) -> bytes:
        depth = self._random.choice((200, 1000, DEEP))
        nested = b"\x91" * depth + b"\xc0"
        fail = (
            b"\x94\x0c\x01\x92\x01\xa1n\x93\xa1s\xc2\x81\xa1d" + nested
        )  # inside a Fail, whose details may be anything
        return frame(self._random.choice((nested, fail)))

    def _message(self, _: Challenge) -> bytes:
        return self._whole()

    def _replayed(self, _: Challenge) -> bytes:
        return frame(self._random.choice(self._bodies[Proof.__name__]))

    def _wrong_secret(self, challenge: Challenge) -> bytes:
        nonce = self._random.randbytes(NONCE_BYTES)
        return CODEC.encode(prove(b"not the secret", challenge, nonce, Purpose(CODEC.service)))

    def _wrong_code(self, _: Challenge) -> bytes:
        return self._whole() + self._random.randbytes(MAC_BYTES)

    # -- small things ------------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        return self._random.choice(self._bodies[self._random.choice(list(self._bodies))])

    def _whole(self) -> bytes:
        return frame(self._body())

    def _values(self) -> list[Any]:
        values: list[Any] = msgspec.msgpack.decode(self._body())
        return values


def _leaves(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Return every value inside a message that holds no further ones, as what holds it and where."""
    for place in list(holder) if isinstance(holder, dict) else range(len(holder)):
        if isinstance(holder[place], list | dict) and holder[place]:
            yield from _leaves(holder[place])
        else:
            yield holder, place


def frame(body: bytes, *, length: int | None = None, version: int = PROTOCOL_VERSION) -> bytes:
    """Return a frame whose header says what it is told to."""
    size = len(body) if length is None else length
    return b"HF" + bytes([version, 0]) + size.to_bytes(4, "big") + body
