"""The handshake: both sides prove the secret, and no proof is worth anything twice."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.errors import HandshakeError, WrongSecretError
from holdfast.wire.frames import HELLO_BYTES_MAX
from holdfast.wire.handshake import (
    NO_SECRET,
    NONCE_BYTES,
    WRONG_SECRET,
    Challenge,
    Proof,
    Refused,
    Welcome,
    judge,
    prove,
    verify,
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
secret_keys = st.binary(min_size=1, max_size=100)


@given(secret_keys, nonces, nonces)
def test_two_sides_with_the_same_secret_believe_each_other(secret, server_nonce, client_nonce):
    challenge = Challenge(server_nonce, guarded=True)
    proof = prove(secret, challenge, client_nonce)
    welcome = judge(secret, challenge, proof, "served")

    assert isinstance(welcome, Welcome)
    assert verify(secret, challenge, proof, welcome).kind == "served"


@given(secret_keys, secret_keys, nonces, nonces)
def test_a_wrong_secret_is_refused_and_says_what_to_do(ours, theirs, server_nonce, client_nonce):
    assume(ours != theirs)
    # HMAC pads a short key with zeros, so these two would be the same key.
    assume(ours.rstrip(b"\0") != theirs.rstrip(b"\0"))
    challenge = Challenge(server_nonce, guarded=True)

    assert judge(ours, challenge, prove(theirs, challenge, client_nonce)) == Refused(WRONG_SECRET)


@given(nonces, nonces, nonces)
def test_a_proof_answers_one_challenge_only(first, second, client_nonce):
    assume(first != second)
    proof = prove(b"secret", Challenge(first, guarded=True), client_nonce)

    assert judge(b"secret", Challenge(second, guarded=True), proof) == Refused(WRONG_SECRET)


def test_a_proof_cannot_be_thrown_back_as_a_welcome():
    challenge = Challenge(bytes(NONCE_BYTES), guarded=True)
    proof = prove(b"secret", challenge, bytes(NONCE_BYTES))

    with pytest.raises(HandshakeError, match="did not prove the shared secret"):
        verify(b"secret", challenge, proof, Welcome(proof.mac, ""))


def test_a_coordinator_that_asks_for_a_secret_is_not_answered_without_one():
    with pytest.raises(HandshakeError, match=NO_SECRET.split(":")[0]):
        prove(b"", Challenge(bytes(NONCE_BYTES), guarded=True), bytes(NONCE_BYTES))


def test_a_run_without_a_secret_shakes_hands_too():
    challenge = Challenge(bytes(NONCE_BYTES), guarded=False)
    proof = prove(b"", challenge, bytes(NONCE_BYTES))

    assert isinstance(judge(b"", challenge, proof), Welcome)
    other = prove(b"some secret", Challenge(bytes(NONCE_BYTES), guarded=True), bytes(NONCE_BYTES))
    assert judge(b"", challenge, other) == Refused(WRONG_SECRET)


def test_a_node_with_a_secret_does_not_talk_to_a_coordinator_without_one():
    with pytest.raises(HandshakeError, match="runs without a shared secret \\(--insecure\\), and this node has one"):
        prove(b"some secret", Challenge(bytes(NONCE_BYTES), guarded=False), bytes(NONCE_BYTES))


def test_only_a_wrong_secret_is_called_one():
    challenge = Challenge(bytes(NONCE_BYTES), guarded=True)
    proof = prove(b"secret", challenge, bytes(NONCE_BYTES))

    with pytest.raises(WrongSecretError):
        verify(b"secret", challenge, proof, Refused(WRONG_SECRET))
    with pytest.raises(WrongSecretError):
        verify(b"secret", challenge, proof, Welcome(bytes(32), ""))
    with pytest.raises(WrongSecretError):
        prove(b"", challenge, bytes(NONCE_BYTES))
    with pytest.raises(HandshakeError) as refused:
        verify(b"secret", challenge, proof, Refused("too many connections"))
    assert not isinstance(refused.value, WrongSecretError)


@pytest.mark.parametrize("length", [0, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_a_nonce_has_its_length(length):
    challenge = Challenge(bytes(length), guarded=True)
    with pytest.raises(HandshakeError, match=f"a nonce of {length} bytes"):
        prove(b"secret", challenge, bytes(NONCE_BYTES))

    refused = judge(b"secret", Challenge(bytes(NONCE_BYTES), guarded=True), Proof(bytes(length), b""))
    assert refused == Refused(f"a nonce has {NONCE_BYTES} bytes, not {length}")


@pytest.mark.parametrize("mac", [b"", b"short", bytes(32), bytes(1000)])
def test_any_other_mac_is_refused(mac):
    challenge = Challenge(bytes(NONCE_BYTES), guarded=True)

    assert judge(b"secret", challenge, Proof(bytes(NONCE_BYTES), mac)) == Refused(WRONG_SECRET)


def test_a_refusal_reaches_the_caller_in_its_own_words():
    challenge = Challenge(bytes(NONCE_BYTES), guarded=True)
    proof = prove(b"secret", challenge, bytes(NONCE_BYTES))

    with pytest.raises(HandshakeError, match="the house is full"):
        verify(b"secret", challenge, proof, Refused("the house is full"))
    with pytest.raises(HandshakeError, match="expected a welcome, got Challenge"):
        verify(b"secret", challenge, proof, challenge)


def test_what_a_stranger_says_fits_its_allowance():
    assert 2 * (NONCE_BYTES + 32) < HELLO_BYTES_MAX
