"""HTTP/1.x as far as a health check needs it: bytes in, requests out; replies in, bytes out. Pure.

Requests have no body here: one that announces a body is refused. Anything that is not HTTP raises `BadRequestError`
with the status of the refusal; after that the connection must be closed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import PeerError

HEADERS_MAX = 100
#: Empty lines that a client may send before a request, as some do after the last one.
BLANK_BYTES_MAX = 64

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

_ORIGIN = "http://"
#: A name or an address, IPv6 ones in brackets, and a port. Two `Host` headers, joined by a comma, do not match.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{0,255})(?::[0-9]{0,5})?")

_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class BadRequestError(PeerError):
    """The client sent something that is not a request that this server accepts."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Request(NamedTuple):
    """One request: its path without the query, and what the client wants of the answer and the connection."""

    method: str
    path: str
    wants_json: bool = False
    keep_alive: bool = False
    #: The host that the client means to speak to, without a port; empty if an old client does not say.
    host: str = ""


class Reply(NamedTuple):
    """One answer."""

    status: int
    content_type: str
    body: bytes
    #: The methods that a 405 must list.
    allow: str = ""


class RequestReader:
    """Cuts a stream of bytes into requests; holds no more than one head beyond what it was just fed."""

    def __init__(self, head_bytes_max: int) -> None:
        self._head_bytes_max = head_bytes_max
        self._buffer = bytearray()
        #: Up to here there is no end of a head: nothing is searched twice.
        self._searched = 0
        self._blank = 0

    @property
    def is_empty(self) -> bool:
        """Whether no part of a request is held."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def take(self) -> Request | None:
        """Return the next request, or None until more has arrived; raises `BadRequestError`."""
        self._skip_blank()
        end, length = self._find_end()
        # Where no end is found, it may still be in the last bytes, of which the rest has not arrived.
        if (end if end >= 0 else len(self._buffer) - 3) > self._head_bytes_max:
            raise BadRequestError(431, f"the request's head is over the limit of {self._head_bytes_max} bytes")
        if end < 0:
            return None
        head = bytes(self._buffer[:end])
        del self._buffer[: end + length]
        self._searched = self._blank = 0
        return parse_head(head)

    def _skip_blank(self) -> None:
        blank = len(self._buffer) - len(self._buffer.lstrip(b"\r\n"))
        if blank:
            self._blank += blank
            self._searched = 0
            del self._buffer[:blank]
        if self._blank > BLANK_BYTES_MAX:
            raise BadRequestError(400, "only empty lines arrived")

    def _find_end(self) -> tuple[int, int]:
        """Find the empty line that ends the head, with or without carriage returns; returns where, and its length."""
        start = max(0, self._searched - 3)
        found = [(self._buffer.find(mark, start), len(mark)) for mark in (b"\r\n\r\n", b"\n\n", b"\n\r\n")]
        self._searched = len(self._buffer)
        return min((each for each in found if each[0] >= 0), default=(-1, 0))


def parse_head(head: bytes) -> Request:
    """Read a request line and its headers; raises `BadRequestError`."""
    lines = head.replace(b"\r\n", b"\n").rstrip(b"\r").split(b"\n")
    method, target, version = _parse_line(lines[0])
    headers = _parse_headers(lines[1:])
    host = _host(target, headers.get("host"), version)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequestError(413, "no endpoint here takes a body")
    connection = {part.strip().lower() for part in headers.get("connection", "").split(",")}
    keep_alive = "close" not in connection and (version != b"HTTP/1.0" or "keep-alive" in connection)
    return Request(method, _path(target), _names_json(headers.get("accept", "")), keep_alive, host)


def _parse_line(line: bytes) -> tuple[str, str, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[0] or not _TOKEN.issuperset(parts[0]):
        raise BadRequestError(400, "this is not an HTTP request")
    method, target, version = parts
    if not version.startswith(b"HTTP/") or not all(0x21 <= byte <= 0x7E for byte in target):
        raise BadRequestError(400, "this is not an HTTP request")
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise BadRequestError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    return method.decode("ascii"), target.decode("ascii"), version


def _path(target: str) -> str:
    """Return the path of a target: without its query, and without the origin that a proxy's client writes first."""
    if target.lower().startswith(_ORIGIN):
        target = "/" + target[len(_ORIGIN) :].partition("/")[2]
    path = target.partition("?")[0].partition("#")[0]
    return path.rstrip("/") or "/"


def _host(target: str, header: str | None, version: bytes) -> str:
    """Return the host that a request is meant for; one in the target counts for more than the header."""
    if header is None and version != b"HTTP/1.0":
        raise BadRequestError(400, "the request does not say which host it is meant for")
    text = header or ""
    if target.lower().startswith(_ORIGIN):
        text = re.split("[/?#]", target[len(_ORIGIN) :], maxsplit=1)[0]
        if not text:
            raise BadRequestError(400, "the request does not say which host it is meant for")
    found = _HOST.fullmatch(text)
    if found is None:
        raise BadRequestError(400, "the name of the host in the request is malformed")
    return found[1].lower()


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise BadRequestError(431, f"there are more than {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not _TOKEN.issuperset(name) or b"\0" in value or b"\r" in value:
            raise BadRequestError(400, "a header is malformed")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _names_json(accept: str) -> bool:
    """Whether a client asks for JSON by name and has not put it at zero."""
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        if kind == JSON:
            return not any(each.removeprefix("q=").strip("0.") == "" for each in parameters if each.startswith("q="))
    return False


def render(reply: Reply, *, head_only: bool, keep_alive: bool) -> bytes:
    """Return the bytes of a reply."""
    lines = [
        f"HTTP/1.1 {reply.status} {REASONS[reply.status]}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    if reply.allow:
        lines.append(f"Allow: {reply.allow}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    return head if head_only else head + reply.body
