"""Frames: however a stream is cut, the same bodies come out; what is not ours is refused at its first wrong byte."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.messages import CODEC, Beat, Cause, Fail, Phase, Query, RoundId
from holdfast.errors import FrameError
from holdfast.wire.frames import HEADER_BYTES, PROTOCOL_VERSION, Codec, FrameReader, Message
from holdfast.wire.handshake import Challenge

bodies_lists = st.lists(st.binary(max_size=300), max_size=8)


def frame(body, *, length=None, version=PROTOCOL_VERSION, magic=b"HF", reserved=0):
    size = len(body) if length is None else length
    return magic + bytes([version, reserved]) + size.to_bytes(4, "big") + body


def pieces(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(bodies_lists, st.lists(st.integers(0, 3000), max_size=20))
def test_a_stream_cut_at_any_points_gives_the_same_bodies(bodies, cuts):
    reader = FrameReader()
    stream = b"".join(frame(body) for body in bodies)

    assert [body for piece in pieces(stream, cuts) for body in reader.feed(piece)] == bodies


@given(bodies_lists)
def test_a_stream_byte_by_byte_gives_the_same_bodies(bodies):
    reader = FrameReader()
    stream = b"".join(frame(body) for body in bodies)

    assert [body for byte in stream for body in reader.feed(bytes([byte]))] == bodies


@given(st.binary(min_size=1, max_size=200))
def test_whatever_bytes_arrive_they_are_frames_or_refused(data):
    reader = FrameReader(bytes_max=64)
    try:
        bodies = reader.feed(data)
    except FrameError:
        return

    assert all(len(body) <= 64 for body in bodies)


@given(st.binary(max_size=200))
def test_a_body_is_a_known_message_or_refused(body):
    try:
        message = CODEC.decode(body)
    except FrameError:
        return

    assert isinstance(message, Message)


def test_tls_is_known_by_its_first_bytes():
    with pytest.raises(FrameError, match="the other side speaks TLS, and this side does not"):
        FrameReader().feed(b"\x16\x03\x01")


@pytest.mark.parametrize("start", [b"G", b"HT", b"GET / HTTP/1.1\r\n", b"\x15\x03\x01", b"HFF\x01\x00\x00\x00\x00"[1:]])
def test_another_protocol_is_known_by_its_first_bytes(start):
    with pytest.raises(FrameError, match="something else is talking to this port"):
        FrameReader().feed(start)


def test_the_start_of_a_frame_is_waited_for():
    reader = FrameReader()

    assert reader.feed(b"H") == []
    assert reader.feed(frame(b"body")[1:]) == [b"body"]


def test_a_reserved_byte_that_is_set_is_refused():
    with pytest.raises(FrameError, match="not Holdfast frames"):
        FrameReader().feed(frame(b"", reserved=1))


def test_another_version_says_what_to_install():
    with pytest.raises(FrameError, match=r"version 9, this side 2: install the same holdfast version on every node"):
        FrameReader().feed(frame(b"", version=9))


def test_a_length_over_the_limit_is_refused_before_the_body_arrives():
    reader = FrameReader(bytes_max=100)

    assert reader.feed(frame(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(FrameError, match="a frame of 101 bytes is over the limit of 100"):
        reader.feed(frame(b"", length=101))


def test_a_wrong_frame_behind_the_start_of_one_is_refused():
    reader = FrameReader(bytes_max=100)
    reader.feed(frame(b"x" * 50)[:20])

    with pytest.raises(FrameError, match="over the limit"):
        reader.feed(frame(b"x" * 50)[20:] + frame(b"", length=2**32 - 1))


def test_an_idle_reader_holds_no_buffer():
    reader = FrameReader()
    reader.feed(frame(b"x" * 1000)[:500])
    reader.feed(frame(b"x" * 1000)[500:])

    assert reader._buffer is None


@pytest.mark.parametrize(
    "message",
    [
        Beat(1, Phase.RUNNING, 2, RoundId(3, "nonce")),
        Fail(1, RoundId(1, "n"), Cause("it died", detail={"code": 1, "nested": [1, {"a": None}]})),
        Query(),
    ],
)
def test_a_message_comes_back_as_it_was(message):
    [body] = FrameReader().feed(CODEC.encode(message))

    assert CODEC.decode(body) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x92\x01",  # ends in the middle
        b"\x93\x01\xa1x\xc3",  # text where bytes belong
        b"\x92\x10\xa2\xff\xff",  # text that is not UTF-8
        b"\x91" * 100_000 + b"\xc0",
        b"\x94\x0c\x01\x92\x01\xa1n\x93\xa1s\xc2\x81\xa1d" + b"\x91" * 100_000 + b"\xc0",  # deep inside a Fail
    ],
)
def test_a_body_that_is_no_message_is_refused_with_a_reason(body):
    with pytest.raises(FrameError, match="a frame does not hold a known message"):
        CODEC.decode(body)


def test_a_codec_knows_only_its_own_types():
    codec = Codec(Challenge, service="coordinator")

    with pytest.raises(FrameError):
        codec.decode(CODEC.encode(Query())[HEADER_BYTES:])
