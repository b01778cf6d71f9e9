"""The garbage mill: the same seed grinds the same garbage, and every piece of it is invalid for some reader."""

import pytest
from bench._mill import Mill

from holdfast.coordinator.messages import CODEC, Beat, Join, NodeSpec, Phase, RoundId, RunSettings
from holdfast.errors import FrameError
from holdfast.wire.frames import HEADER_BYTES, HELLO_BYTES_MAX, FrameReader
from holdfast.wire.handshake import NONCE_BYTES, Challenge, Proof, Purpose, Refused, ServerHandshake

CHALLENGE = Challenge(bytes(NONCE_BYTES), guarded=True)
SAID = [
    Proof(bytes(NONCE_BYTES), bytes(32), "coordinator"),
    Join(1, "run", NodeSpec("n", "h", "default", 1, 1), RunSettings(1, 2), Phase.WAITING, 1),
    Beat(2, Phase.RUNNING, 1, RoundId(1, "nonce")),
]
BODIES = [CODEC.encode(message)[HEADER_BYTES:] for message in SAID]


def grind(seed, kind, count=50):
    mill = Mill(BODIES, seed)
    return [{**mill.unproven, **mill.proven}[kind](CHALLENGE) for _ in range(count)]


KINDS = sorted({*Mill(BODIES, 0).unproven, *Mill(BODIES, 0).proven})


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_grinds_the_same_garbage(kind):
    assert grind(1, kind) == grind(1, kind)
    assert all(grind(1, kind))


@pytest.mark.parametrize("kind", ["a huge length", "a wrong version"])
def test_a_wrong_header_never_gets_past_the_reader(kind):
    for piece in grind(2, kind):
        with pytest.raises(FrameError):
            FrameReader(HELLO_BYTES_MAX).feed(piece)


def test_an_absurd_join_often_gets_past_the_decoder():
    """Those are the ones that a coordinator has to survive by judgment, not by type."""
    passed = 0
    for piece in grind(3, "an absurd join", 200):
        try:
            passed += isinstance(CODEC.decode(piece[HEADER_BYTES:]), Join)
        except FrameError:
            continue

    assert passed > 50


@pytest.mark.parametrize("kind", ["a wrong secret", "a replayed proof"])
def test_no_proof_from_the_mill_is_believed(kind):
    for piece in grind(4, kind):
        proof = CODEC.decode(piece[HEADER_BYTES:])

        server = ServerHandshake(b"the secret", Purpose("coordinator"), CHALLENGE.nonce)
        assert isinstance(server.hear(proof), Refused)
