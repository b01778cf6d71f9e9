"""Whatever arrives on the port gets a clear refusal, costs its own connection, and nothing else."""

import pytest

from holdfast.coordinator.messages import CODEC, Join, NodeSpec, Phase, Query, Rejected, Report, RunSettings
from holdfast.errors import ConnectionLostError
from holdfast.store.messages import StoreGet, StoreHello, StoreSet
from holdfast.wire.channel import Channel
from holdfast.wire.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, PROTOCOL_VERSION
from holdfast.wire.handshake import NONCE_BYTES, WRONG_SECRET, Purpose, Refused, Welcome, prove
from holdfast.wire.listener import Limits

FRAMES = 3000
SEED = 7
#: A silent peer is dropped soon, and one that proves itself has the time to, on a busy machine too.
HASTY_S = 1.0


def frame(body=b"", *, length=None, version=PROTOCOL_VERSION):
    size = len(body) if length is None else length
    return b"HF" + bytes([version, 0]) + size.to_bytes(4, "big") + body


def assert_refused(server, sender, reason):
    """Check that the sender is told why, that its connection ends, and that the fact says the same."""
    refused = sender.hear()

    assert isinstance(refused, Refused)
    assert reason in refused.reason
    assert sender.hear() is None
    assert server.next_refusal() == refused.reason


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x01\x02\x03\x04\x05\x06\x07\x08", "not Holdfast frames"),
        (b"GET / HTTP/1.1\r\n\r\n", "something else is talking to this port"),
        (frame(b"\x91" * 10, version=9), "protocol version 9, this side 2: install the same holdfast version"),
        (frame(version=0), "protocol version 0"),
        (frame(length=2**32 - 1), "a frame of 4294967295 bytes is over the limit"),
        (frame(b"\xc1"), "does not hold a known message"),
        (frame(b"\x92\x10\xa2\xff\xff"), "does not hold a known message"),
        (frame(b"\x91" * 900 + b"\xc0"), "does not hold a known message"),
    ],
)
def test_what_is_no_frame_of_ours_is_refused(serve, raw_peer, start_job, data, reason, proven):
    server = serve()
    job = start_job(server)
    sender = raw_peer(server.endpoint)
    if proven:
        sender.proven()
    sender.say_sealed(data)

    assert_refused(server, sender, reason)
    job.assert_undisturbed()


def test_an_unproven_peer_may_not_send_what_a_proven_peer_may(serve, raw_peer):
    server = serve()
    body = CODEC.encode(Query("x" * HELLO_BYTES_MAX))
    early = raw_peer(server.endpoint)
    early.say_bytes(body)
    assert_refused(server, early, f"over the limit of {HELLO_BYTES_MAX}")

    proven = raw_peer(server.endpoint).proven()
    proven.say_sealed(body)
    assert proven.hear() == Report([])
    proven.say_bytes(frame(length=FRAME_BYTES_MAX + 1))
    assert_refused(server, proven, f"over the limit of {FRAME_BYTES_MAX}")


def test_a_wrong_secret_is_told_what_to_do(serve, raw_peer, start_job):
    server = serve()
    job = start_job(server)
    sender = raw_peer(server.endpoint).prove(b"another secret")

    assert_refused(server, sender, WRONG_SECRET)
    job.assert_undisturbed()


def test_a_replayed_proof_is_worth_nothing(serve, raw_peer, start_job):
    server = serve()
    job = start_job(server)
    first = raw_peer(server.endpoint)
    proof = prove(server.secret, first.challenge, bytes(NONCE_BYTES), Purpose("coordinator"))
    first.say(proof)
    assert isinstance(first.hear(), Welcome)
    replayer = raw_peer(server.endpoint)
    replayer.say(proof)

    assert_refused(server, replayer, WRONG_SECRET)
    job.assert_undisturbed()


def test_a_message_before_the_proof_is_refused_and_not_believed(serve, raw_peer, start_job):
    server = serve()
    job = start_job(server)
    sender = raw_peer(server.endpoint)
    settings, spec = RunSettings(1, 1), NodeSpec("node-0", "host-0", "default", 1, 1000)
    sender.say(Join(999, "job", spec, settings, Phase.WAITING, 999))

    assert_refused(server, sender, "the handshake comes first, not Join")
    job.assert_undisturbed()


def test_half_a_frame_and_then_silence_runs_into_the_handshake_timeout(serve, raw_peer, start_job):
    server = serve(Limits(handshake_timeout_s=HASTY_S))
    job = start_job(server)
    silent, half = raw_peer(server.endpoint), raw_peer(server.endpoint)
    half.say_bytes(frame(b"x" * 100)[:20])

    reasons = [server.next_refusal(), server.next_refusal()]
    assert reasons == [f"no handshake within {HASTY_S:g} s"] * 2
    for each in (silent, half):
        assert each.hear() == Refused(f"no handshake within {HASTY_S:g} s", again=True)
        assert each.hear() is None
    job.assert_undisturbed()


def test_a_proven_peer_may_be_silent(serve, raw_peer):
    server = serve(Limits(handshake_timeout_s=HASTY_S))
    quiet = raw_peer(server.endpoint).proven()
    raw_peer(server.endpoint)
    assert server.next_refusal() == f"no handshake within {HASTY_S:g} s"
    quiet.say(Query())

    assert quiet.hear() == Report([])


def test_one_connection_too_many_is_turned_away_and_may_come_later(serve, raw_peer):
    server = serve(Limits(connections_max=2))
    first, _ = raw_peer(server.endpoint).proven(), raw_peer(server.endpoint).proven()
    assert_refused(server, raw_peer(server.endpoint, greeted=False), "the limit of 2 connections is reached")
    with pytest.raises(
        ConnectionLostError, match="the limit of 2 connections is reached"
    ):  # not final: it may try again
        Channel.connect(server.endpoint, CODEC, server.secret)
    first.socket.close()
    while isinstance(raw_peer(server.endpoint, greeted=False).hear(), Refused):
        pass  # the coordinator has not heard of the goodbye yet


def test_a_peer_that_does_not_read_its_answers_is_dropped(serve, raw_peer, start_job):
    server = serve(Limits(pending_bytes_max=1_000_000))
    job = start_job(server)
    slow = raw_peer(server.endpoint).proven()
    slow.say(StoreHello("slow"))
    slow.say(StoreSet(1, "space", "key", bytes(4_000_000)))
    # A few answers are more than the kernel takes for one who does not read.
    for number in range(2, 6):
        slow.say(StoreGet(number, "space", "key", 1.0))

    assert server.next_refusal() == "it does not read what it asked for"
    job.assert_undisturbed()


def test_numbers_that_are_none_do_not_stop_the_clock_of_others(serve, raw_peer, start_job):
    server = serve()
    for number, lease_s in enumerate((float("nan"), float("inf"), 1e300)):
        sender = raw_peer(server.endpoint).proven()
        spec = NodeSpec("node", "host", "default", 1, 1000, lease_s=lease_s)
        sender.say(Join(1, f"absurd-{number}", spec, RunSettings(2, 2), Phase.WAITING, 1))
        sender.say(Query("no such run"))
        while isinstance(answer := sender.hear(), Rejected):
            pass

        assert answer is None or answer == Report([]) or isinstance(answer, Refused)
    start_job(server).assert_undisturbed()


def test_thousands_of_ground_frames_cost_only_their_own_connections(serve, start_job, tmp_path):
    from bench._attack import Attacker
    from bench._capture import capture
    from bench._mill import Mill

    secret_file = tmp_path / "secret"
    server = serve()
    secret_file.write_bytes(server.secret)
    secret_file.chmod(0o600)
    bodies = capture(server.endpoint, server.secret, str(secret_file))
    job = start_job(server)
    attacker = Attacker(server.endpoint, server.secret, Mill(bodies, SEED))
    for _ in range(FRAMES):
        attacker.send_one()
    attacker.close()

    assert sum(counter["refused"] for counter in attacker.outcomes.values()) > FRAMES / 3
    for kind in ("a replayed proof", "a wrong secret", "a wrong version", "a message before the proof"):
        counter = attacker.outcomes["unproven", kind]
        assert counter["refused"] == counter.total() > 0
    job.assert_undisturbed()
    start_job(server, run="later").assert_undisturbed()
    server.coordinator.machine.check()
