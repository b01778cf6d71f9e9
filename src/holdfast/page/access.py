"""Access to the page: a link that works once, then a cookie. Pure but for its secrets, which are passed in.

The server listens on loopback, where every user of this machine can reach it, and so can pages of other sites in this
user's browser. So a request must name this host, which a page that was led here by DNS cannot, and carry a cookie that
only the browser that opened the link has. What changes something needs a header of ours as well, which a form of
another site cannot send.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import Enum

COOKIE = "holdfast-page"
HEADER = "x-holdfast-page"
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


class Verdict(Enum):
    """What to answer."""

    LET_IN = "let in"
    WRONG_HOST = "wrong host"
    NO_COOKIE = "no cookie"
    USED = "used"
    NO_HEADER = "no header"


class Access:
    """Decides who may see the page; `make_secret` returns a fresh secret each time."""

    def __init__(self, make_secret: Callable[[], str]) -> None:
        self._make_secret = make_secret
        self.token = make_secret()
        self._used: set[str] = set()
        self._cookies: set[str] = set()

    def open(self, token: str) -> str:
        """Exchange a token for a cookie, once; empty if it is wrong or was used. A new token is there afterwards."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return ""
        self._used.add(token)
        self.token = self._make_secret()
        cookie = self._make_secret()
        self._cookies.add(cookie)
        return cookie

    def was_used(self, token: str) -> bool:
        """Whether this token has been exchanged before."""
        return token in self._used

    def judge(self, host: str, cookie: str, *, changes: bool, header: str) -> Verdict:
        """Decide on a request by the host that it names, its cookie, and whether it would change something."""
        if not is_this_host(host):
            return Verdict.WRONG_HOST
        if not any(hmac.compare_digest(cookie.encode(), known.encode()) for known in self._cookies):
            return Verdict.NO_COOKIE
        return Verdict.NO_HEADER if changes and not header else Verdict.LET_IN


def is_this_host(host: str) -> bool:
    """Whether a Host header names loopback, with or without a port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower() in HOSTS
