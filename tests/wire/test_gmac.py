"""GMAC for long frames: agreed on in the handshake, used once it pays, and as strict as the hashes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.errors import FrameError
from holdfast.store import StoreClient
from holdfast.testing.store_server import StoreServer
from holdfast.wire import gmac, session
from holdfast.wire.gmac import find_gmac, make_gmac
from holdfast.wire.handshake import WRONG_SECRET, ClientHandshake, Purpose, Refused, ServerHandshake
from holdfast.wire.session import GMAC_AFTER_BYTES, KEY_BYTES, SHORT_BYTES_MAX, Seal

pytest.importorskip("cryptography")

KEY = bytes(KEY_BYTES)
LONG = b"x" * 10_000


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first long frame be the last that is hashed."""
    monkeypatch.setattr(session, "GMAC_AFTER_BYTES", 1)


def test_both_sides_begin_with_it_at_the_same_frame() -> None:
    sends, hears, hashes = Seal(KEY, make_gmac), Seal(KEY, make_gmac), Seal(KEY)
    frame = b"x" * (GMAC_AFTER_BYTES // 4)
    same = []
    for _ in range(6):
        mac = sends.mac(frame)
        hears.check(frame, mac)
        same.append(mac == hashes.mac(frame))

    assert same == [True] * 4 + [False] * 2


@pytest.mark.usefixtures("at_once")
def test_short_frames_are_hashed_as_ever() -> None:
    with_it, without = Seal(KEY, make_gmac), Seal(KEY)
    frames = [LONG, b"x" * SHORT_BYTES_MAX, b""]

    assert [with_it.mac(frame) for frame in frames] == [without.mac(frame) for frame in frames]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("key", [KEY, b"\1" * KEY_BYTES])
def test_a_long_frame_that_was_changed_repeated_or_left_out_is_refused(key: bytes) -> None:
    sends, first = Seal(KEY, make_gmac), Seal(KEY, make_gmac).mac(LONG)
    codes = [sends.mac(LONG) for _ in range(3)]
    wrong = [(LONG, codes[0]), (LONG, codes[2]), (LONG[:-1] + b"y", codes[1]), (LONG + b"x", codes[1])]
    wrong += [(LONG, codes[1])] if key != KEY else []
    for frame, code in wrong:
        hears = Seal(key, make_gmac)
        hears.mac(LONG)
        with pytest.raises(FrameError, match="changed, repeated or lost on the way"):
            hears.check(frame, code)

    assert first == codes[0]
    assert len(set(codes)) == 3


def shake(server_can: bool, client_can: bool, flip: str = "") -> tuple[ServerHandshake, ClientHandshake, object]:
    purpose, nonce = Purpose("coordinator"), bytes(16)
    server = ServerHandshake(b"secret", purpose, nonce, "served", make_gmac if server_can else None)
    client = ClientHandshake(b"secret", purpose, nonce, make_gmac if client_can else None)
    challenge = server.challenge
    if flip == "challenge":
        challenge = msgspec.structs.replace(challenge, gmac=not challenge.gmac)
    proof = client.hear(challenge)
    assert proof is not None
    if flip == "proof":
        proof = msgspec.structs.replace(proof, gmac=not proof.gmac)
    return server, client, server.hear(proof)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("server_can", "client_can"), [(True, True), (True, False), (False, True), (False, False)])
def test_it_is_used_where_both_sides_can(server_can: bool, client_can: bool) -> None:
    server, client, welcome = shake(server_can, client_can)
    assert client.hear(welcome) is None  # type: ignore[arg-type]
    assert server.session is not None
    assert client.session is not None
    for one, other in ((server.session, client.session), (client.session, server.session)):
        for _ in range(3):
            other.incoming.check(LONG, one.outgoing.mac(LONG))

    assert (client.session.outgoing._gmac is not None) == (server_can and client_can)


@pytest.mark.parametrize("flip", ["challenge", "proof"])
@pytest.mark.parametrize("can", [True, False])
def test_a_program_in_between_cannot_change_what_is_agreed_on(flip: str, can: bool) -> None:
    assert shake(can, True, flip)[2] == Refused(WRONG_SECRET, wrong_secret=True)


def test_a_server_does_not_do_what_it_has_not_offered() -> None:
    """Only a client that knows the secret, and is another program, would ask."""
    server = ServerHandshake(b"secret", Purpose("coordinator"), bytes(16))
    offering = ServerHandshake(b"secret", Purpose("coordinator"), bytes(16), "", make_gmac)
    proof = ClientHandshake(b"secret", Purpose("coordinator"), bytes(16), make_gmac).hear(offering.challenge)
    assert proof is not None
    server.challenge = offering.challenge

    assert isinstance(answer := server.hear(proof), Refused)
    assert "has not offered" in answer.reason


@pytest.fixture
def broken_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    yield
    gmac._broken.clear()


@pytest.mark.usefixtures("broken_package")
def test_a_package_that_cannot_be_imported_costs_one_connection() -> None:
    assert find_gmac() is make_gmac
    with pytest.raises(FrameError, match="installed and cannot be imported"):
        make_gmac(KEY)

    assert find_gmac() is None


def test_large_values_pass_a_real_connection_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    monkeypatch.setattr(gmac, "make_gmac", lambda key: made.append(key) or make_gmac(key))
    value = b"x" * 3_000_000
    with StoreServer(secret=b"secret") as server:
        store = StoreClient.connect(f"127.0.0.1:{server.endpoint.port}", "a/1", secret=b"secret")
        for number in range(8):
            store.set(f"{number}", value)
        assert [store.get(f"{number}") == value for number in range(8)] == [True] * 8
        store.close()

    assert len(set(made)) == 2, "a key for each direction"
    assert len(made) == 4, "at each end"
