"""The HTTP that a health check needs, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.health.http import BadRequestError, Reply, Request, RequestReader, render

HEAD_BYTES_MAX = 512


def read(*pieces: bytes) -> tuple[list[Request], int | None]:
    """Feed pieces; return the requests and the status of the refusal that ended them, if any."""
    reader, requests = RequestReader(HEAD_BYTES_MAX), []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (request := reader.take()) is not None:
                requests.append(request)
    except BadRequestError as refused:
        return requests, refused.status
    return requests, None


def test_a_request_is_a_method_and_a_path() -> None:
    assert read(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n") == (
        [Request("GET", "/healthz", False, True, "here")],
        None,
    )


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/healthz?verbose=1", "/healthz"),
        (b"/healthz/", "/healthz"),
        (b"/", "/"),
        (b"//", "/"),
        (b"http://here:80/status?x", "/status"),
        (b"http://here", "/"),
        (b"*", "*"),
    ],
)
def test_the_path_is_what_the_target_means(target: bytes, path: str) -> None:
    requests, _ = read(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")

    assert [each.path for each in requests] == [path]


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\nconnection: Upgrade, Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_as_its_version_and_header_say(head: bytes, keeps: bool) -> None:
    requests, _ = read(head)

    assert [each.keep_alive for each in requests] == [keeps]


@pytest.mark.parametrize(
    ("accept", "wants"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", True),
        ("text/html, Application/JSON;q=0.9", True),
        ("application/json;q=0", False),
        ("application/json;q=0.0", False),
        ("application/jsonlines", False),
    ],
)
def test_json_is_wanted_where_it_is_named(accept: str, wants: bool) -> None:
    requests, _ = read(f"GET / HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())

    assert [each.wants_json for each in requests] == [wants]


@pytest.mark.parametrize(
    ("head", "host"),
    [
        (b"GET / HTTP/1.1\r\nHost: LocalHost:8080\r\n\r\n", "localhost"),
        (b"GET / HTTP/1.1\r\nhost:[::1]:80\r\n\r\n", "[::1]"),
        (b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "10.0.0.1"),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", ""),
        (b"GET / HTTP/1.0\r\n\r\n", ""),
        (b"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", "evil.example"),
        (b"GET http://evil.example:1/x HTTP/1.1\r\nHost: localhost\r\n\r\n", "evil.example"),
    ],
)
def test_the_host_is_what_the_target_or_the_header_says(head: bytes, host: str) -> None:
    requests, _ = read(head)

    assert [each.host for each in requests] == [host]


def test_lines_may_end_without_a_carriage_return_and_be_preceded_by_empty_ones() -> None:
    requests, refused = read(b"\r\n\nGET /a HTTP/1.0\n\n\r\nGET /b HTTP/1.0\nA: b\r\n\n")

    assert [each.path for each in requests] == ["/a", "/b"]
    assert refused is None


def test_pipelined_requests_come_out_in_their_order() -> None:
    requests, _ = read(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(5)))

    assert [each.path for each in requests] == ["/0", "/1", "/2", "/3", "/4"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),  # a client speaks TLS
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\n\r\n", 400),
        (b"G\xc3T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /\x7f HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / FTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
        (b"GET /" + b"a" * HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"\r\n" * 100, 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # which host?
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
        (b"GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
def test_what_is_not_a_request_of_ours_is_refused(data: bytes, status: int) -> None:
    assert read(data) == ([], status)


def test_a_head_of_exactly_the_limit_is_taken() -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nA: ".ljust(HEAD_BYTES_MAX, b"a")

    assert len(read(head + b"\r\n\r\n")[0]) == 1
    assert read(head + b"a\r\n\r\n") == ([], 431)


@given(st.binary(max_size=2000))
def test_garbage_is_refused_or_waited_for_and_nothing_else(data: bytes) -> None:
    requests, refused = read(data)

    assert refused in (None, 400, 413, 431, 505)
    assert len(requests) <= len(data) // 14


_PIECE = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"HEAD /status HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"Connection: close",
        b"Accept: application/json",
        b" ",
        b":",
        b"Content-Length: 0",
        b"x" * 100,
    ]
)


@given(st.lists(_PIECE | st.binary(max_size=8), max_size=30), st.data())
@example([b"GET / HTTP/1.1", b"\r\n\r\n" * 2], None)
def test_how_the_bytes_are_cut_makes_no_difference(pieces: list[bytes], data: st.DataObject | None) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8))) if data is not None else [3, 15]
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    assert read(*parts) == read(whole)
    assert read(*(whole[n : n + 1] for n in range(len(whole)))) == read(whole)


def test_a_reply_says_its_length_even_where_only_its_head_is_wanted() -> None:
    reply = Reply(200, "text/plain", b"well\n")

    whole = render(reply, head_only=False, keep_alive=True)
    head = render(reply, head_only=True, keep_alive=True)

    assert whole == head + b"well\n"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"\r\nContent-Length: 5\r\n" in head
    assert b"\r\nConnection: keep-alive\r\n" in head
