"""The session: a frame is right once, at its place, in its direction, and only whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.messages import CODEC, Query
from holdfast.errors import FrameError
from holdfast.wire.frames import FRAME_BYTES_MAX, FrameReader
from holdfast.wire.session import KEY_BYTES, MAC_BYTES, Seal, Session

KEYS = (bytes(KEY_BYTES), b"\1" * KEY_BYTES)


def reader_of(key=KEYS[0], bytes_max=FRAME_BYTES_MAX):
    reader = FrameReader(stepwise=True)
    reader.authenticate(Seal(key), bytes_max)
    return reader


def sealed(seal, *messages):
    frames = [CODEC.encode(message) for message in messages]
    return [frame + seal.mac(frame) for frame in frames]


def decode(bodies):
    return [CODEC.decode(body) for body in bodies]


@given(st.lists(st.text(max_size=50), max_size=6), st.integers(1, 60))
def test_whole_frames_come_out_however_the_stream_is_cut(names, step):
    messages = [Query(name) for name in names]
    stream = b"".join(sealed(Seal(KEYS[0]), *messages))
    reader = reader_of()
    pieces = [stream[start : start + step] for start in range(0, len(stream), step)]

    assert decode([body for piece in pieces for body in reader.feed(piece)]) == messages
    assert not reader.is_midway


@given(st.data())
def test_a_frame_with_any_bit_changed_is_refused_or_never_ends(data):
    [frame] = sealed(Seal(KEYS[0]), Query("a run"))
    place = data.draw(st.integers(0, 8 * len(frame) - 1))
    wrong = bytearray(frame)
    wrong[place // 8] ^= 1 << place % 8
    reader = reader_of(bytes_max=1000)
    try:
        bodies = reader.feed(bytes(wrong))
    except FrameError:
        return

    assert bodies == []  # its length was made longer: it is still waited for
    assert reader.is_midway


def test_a_repeated_a_missing_and_a_swapped_frame_are_refused():
    first, second, third = sealed(Seal(KEYS[0]), Query("1"), Query("2"), Query("3"))
    for stream in (first + first, first + third, second + first):
        with pytest.raises(FrameError, match="changed, repeated or lost on the way"):
            reader_of().feed(stream)


def test_a_frame_that_is_sent_back_is_refused():
    """Each direction has its own key."""
    client, server = Session(*KEYS), Session(*reversed(KEYS))
    frame = CODEC.encode(Query())
    mac = client.outgoing.mac(frame)
    with pytest.raises(FrameError, match="authentication code is wrong"):
        client.incoming.check(frame, mac)

    server.incoming.check(frame, mac)


def test_a_frame_without_a_code_is_refused_and_so_is_a_code_without_its_end():
    frame = CODEC.encode(Query())
    with pytest.raises(FrameError, match="authentication code is wrong"):
        reader_of().feed(frame + bytes(MAC_BYTES))
    reader = reader_of()
    [whole] = sealed(Seal(KEYS[0]), Query())
    for end in range(len(whole)):
        assert reader_of().feed(whole[:end]) == []
    assert reader.feed(whole[:-1]) == []
    assert reader.is_midway
    assert decode(reader.feed(whole[-1:])) == [Query()]


def test_a_stepwise_reader_cuts_what_follows_the_handshake_with_the_seal():
    reader = FrameReader(stepwise=True)
    plain, stream = CODEC.encode(Query("plain")), b"".join(sealed(Seal(KEYS[0]), Query("1"), Query("2")))

    assert decode(reader.feed(plain + stream)) == [Query("plain")]
    reader.authenticate(Seal(KEYS[0]), FRAME_BYTES_MAX)
    assert decode(reader.feed(b"")) == [Query("1"), Query("2")]


def test_the_same_message_has_another_code_each_time():
    seal = Seal(KEYS[0])
    frame = CODEC.encode(Query())

    assert len({seal.mac(frame) for _ in range(100)}) == 100
    assert Seal(KEYS[0]).mac(frame) != Seal(KEYS[1]).mac(frame)
