"""The handshake: both sides prove the secret and agree on what the connection is for; no proof is good for two."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.coordinator.messages import CODEC
from holdfast.errors import ConnectionLostError, FrameError, HandshakeError, WrongSecretError
from holdfast.wire import handshake
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import HEADER_BYTES, HELLO_BYTES_MAX
from holdfast.wire.handshake import (
    NO_SECRET,
    NONCE_BYTES,
    REASON_CHARACTERS_MAX,
    WRONG_SECRET,
    Challenge,
    ClientHandshake,
    Proof,
    Purpose,
    Refused,
    ServerHandshake,
    Welcome,
    prove,
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
secret_keys = st.binary(min_size=1, max_size=100)
ZEROS, ONES = bytes(NONCE_BYTES), b"\1" * NONCE_BYTES
COORDINATOR = Purpose("coordinator", "run", 29400)


def shake(server, client):
    """Hold the whole handshake; returns what the server answered."""
    answer = server.hear(client.hear(server.challenge))
    assert client.hear(answer) is None
    return answer


def pair(secret=b"secret", server_nonce=ZEROS, client_nonce=ONES, purpose=COORDINATOR, kind="served"):
    return ServerHandshake(secret, purpose, server_nonce, kind), ClientHandshake(secret, purpose, client_nonce)


@given(secret_keys, nonces, nonces)
def test_two_sides_with_the_same_secret_believe_each_other(secret, server_nonce, client_nonce):
    server, client = pair(secret, server_nonce, client_nonce)

    assert isinstance(shake(server, client), Welcome)
    assert client.kind == "served"
    for one, other in ((server.session, client.session), (client.session, server.session)):
        frame = CODEC.encode(Refused("x"))
        other.incoming.check(frame, one.outgoing.mac(frame))


@given(secret_keys, secret_keys, nonces, nonces)
def test_a_wrong_secret_is_refused_and_says_what_to_do(ours, theirs, server_nonce, client_nonce):
    assume(ours != theirs)
    # HMAC pads a short key with zeros, so these two would be the same key.
    assume(ours.rstrip(b"\0") != theirs.rstrip(b"\0"))
    server, _ = pair(ours, server_nonce)
    _, client = pair(theirs, client_nonce=client_nonce)

    assert server.hear(client.hear(server.challenge)) == Refused(WRONG_SECRET, wrong_secret=True)
    assert server.session is None


@given(nonces, nonces, nonces)
def test_a_proof_answers_one_challenge_only(first, second, client_nonce):
    assume(first != second)
    proof = prove(b"secret", Challenge(first, guarded=True), client_nonce, COORDINATOR)

    assert pair(server_nonce=second)[0].hear(proof) == Refused(WRONG_SECRET, wrong_secret=True)


@pytest.mark.parametrize(
    "change", [{"service": "vault"}, {"run": b"another run's digest"}, {"port": 1}, {"nonce": ZEROS}, {"port": 0}]
)
def test_nothing_in_a_proof_can_be_changed_on_the_way(change):
    server, client = pair()
    proof = client.hear(server.challenge)

    assert server.hear(msgspec.structs.replace(proof, **change)) == Refused(WRONG_SECRET, wrong_secret=True)


def test_what_the_server_says_cannot_be_changed_on_the_way_either():
    server, client = pair(b"")
    proof = client.hear(msgspec.structs.replace(server.challenge, nonce=ONES))
    assert server.hear(proof) == Refused(WRONG_SECRET, wrong_secret=True)

    server, client = pair()
    welcome = server.hear(client.hear(server.challenge))
    with pytest.raises(HandshakeError, match="did not prove the shared secret"):
        client.hear(msgspec.structs.replace(welcome, kind="embedded"))


def test_a_proof_of_another_protocol_version_is_worth_nothing(monkeypatch):
    server, client = pair()
    proof = client.hear(server.challenge)
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 3)

    assert server.hear(proof) == Refused(WRONG_SECRET, wrong_secret=True)


def test_a_proof_cannot_be_thrown_back_as_a_welcome():
    server, client = pair()
    proof = client.hear(server.challenge)

    with pytest.raises(HandshakeError, match="did not prove the shared secret"):
        client.hear(Welcome(proof.mac, ""))
    assert client.session is None


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (Purpose("vault", "run", 29400), "this port serves the coordinator, and the client asked for the vault"),
        (Purpose("coordinator", "other", 29400), "belongs to run 'run', and the client to another one"),
        (Purpose("coordinator", "run", 29401), "dialled port 29401 of localhost and reached port 29400"),
    ],
)
def test_a_client_that_wanted_something_else_is_refused(theirs, reason):
    """A relay without the secret cannot lead a client to another service, run or port."""
    server = pair()[0]
    client = ClientHandshake(b"secret", theirs, ONES)
    refused = server.hear(client.hear(server.challenge))

    assert isinstance(refused, Refused)
    assert reason in refused.reason
    assert server.session is None


def test_a_server_of_all_runs_takes_clients_of_each_and_a_client_may_leave_run_and_port_open():
    everyone = ServerHandshake(b"secret", Purpose("coordinator", port=29400), ZEROS)
    assert isinstance(shake(everyone, ClientHandshake(b"secret", COORDINATOR, ONES)), Welcome)
    server = pair()[0]
    assert isinstance(shake(server, ClientHandshake(b"secret", Purpose("coordinator"), ONES)), Welcome)


@pytest.mark.parametrize(
    ("host", "port"), [("localhost", 29400), ("127.0.0.1", 29400), ("::1", 29400), ("10.0.0.7", 0), ("head", 0)]
)
def test_only_a_loopback_endpoint_binds_its_port(host, port):
    assert Purpose.of(Endpoint(host, 29400), "coordinator").port == port


def test_a_frame_of_one_connection_is_not_one_of_another():
    sessions = []
    for nonce in (ZEROS, ONES):
        server, client = pair(server_nonce=nonce)
        shake(server, client)
        sessions.append((server.session, client.session))
    frame = CODEC.encode(Refused("x"))
    mac = sessions[0][1].outgoing.mac(frame)

    with pytest.raises(FrameError, match="authentication code is wrong"):
        sessions[1][0].incoming.check(frame, mac)


def test_a_coordinator_that_asks_for_a_secret_is_not_answered_without_one():
    with pytest.raises(HandshakeError, match=NO_SECRET.split(":")[0]):
        ClientHandshake(b"", COORDINATOR, ZEROS).hear(Challenge(ZEROS, guarded=True))


def test_a_run_without_a_secret_shakes_hands_and_authenticates_frames_too():
    server, client = pair(b"")
    assert isinstance(shake(server, client), Welcome)
    frame = CODEC.encode(Refused("x"))
    server.session.incoming.check(frame, client.session.outgoing.mac(frame))

    server = pair(b"")[0]
    claim = prove(b"some secret", Challenge(server.challenge.nonce, guarded=True), ONES, COORDINATOR)
    assert server.hear(claim) == Refused(WRONG_SECRET, wrong_secret=True)


def test_a_node_with_a_secret_does_not_talk_to_a_coordinator_without_one():
    with pytest.raises(HandshakeError, match="runs without a shared secret \\(--insecure\\), and this node has one"):
        prove(b"some secret", Challenge(ZEROS, guarded=False), ONES, COORDINATOR)


def test_only_a_wrong_secret_is_called_one():
    challenge = Challenge(ZEROS, guarded=True)

    def hears(answer, secret=b"secret"):
        client = ClientHandshake(secret, COORDINATOR, ONES)
        client.hear(challenge)
        client.hear(answer)

    with pytest.raises(WrongSecretError):
        hears(Refused(WRONG_SECRET, wrong_secret=True))
    with pytest.raises(WrongSecretError):
        hears(Welcome(bytes(32), ""))
    with pytest.raises(WrongSecretError):
        hears(Welcome(bytes(32), ""), secret=b"")
    with pytest.raises(HandshakeError) as refused:
        hears(Refused("too many connections"))
    assert not isinstance(refused.value, WrongSecretError)


@pytest.mark.parametrize("length", [0, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_a_nonce_has_its_length(length):
    with pytest.raises(HandshakeError, match=f"a nonce of {length} bytes"):
        pair()[1].hear(Challenge(bytes(length), guarded=True))

    refused = pair()[0].hear(Proof(bytes(length), b"", "coordinator"))
    assert refused == Refused(f"a nonce has {NONCE_BYTES} bytes, not {length}")


@pytest.mark.parametrize("mac", [b"", b"short", bytes(32), bytes(1000)])
def test_any_other_mac_is_refused(mac):
    assert pair()[0].hear(Proof(ONES, mac, "coordinator")) == Refused(WRONG_SECRET, wrong_secret=True)


def test_a_refusal_reaches_the_caller_in_its_own_words():
    for step in (0, 1):
        for refused, error in (
            (Refused("no room"), HandshakeError),
            (Refused("no room", again=True), ConnectionLostError),
        ):
            server, client = pair()
            if step:
                client.hear(server.challenge)
            with pytest.raises(error, match="no room"):
                client.hear(refused)
    server, client = pair()
    client.hear(server.challenge)
    with pytest.raises(HandshakeError, match="expected a welcome, got Challenge"):
        client.hear(server.challenge)
    with pytest.raises(HandshakeError, match="expected a challenge, got Welcome"):
        pair()[1].hear(Welcome(b"", ""))


@given(st.text(min_size=1, max_size=5000))
def test_what_is_said_in_a_handshake_fits_its_allowance(name):
    server, client = pair(purpose=Purpose("coordinator", name, 65535))
    proof = client.hear(server.challenge)

    for message in (server.challenge, proof, server.hear(proof), Refused("\U0001f600" * REASON_CHARACTERS_MAX, True)):
        assert len(CODEC.encode(message)) - HEADER_BYTES <= HELLO_BYTES_MAX


def test_a_run_with_bytes_that_are_no_text_can_be_named():
    server, client = pair(purpose=Purpose("coordinator", "caf\udce9"))

    assert isinstance(shake(server, client), Welcome)
