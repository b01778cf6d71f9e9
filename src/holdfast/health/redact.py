"""Redaction: hides secrets in data that is shown to other users. Pure."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
DEPTH_MAX = 20

#: A key with one of these words hides its value, whatever that is.
SECRET_WORDS = frozenset(
    [
        "auth",
        "authorization",
        "cookie",
        "credential",
        "credentials",
        "hmac",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "pwd",
        "secret",
        "secrets",
        "token",
    ]
)
#: The same for these pairs of words, written together or apart.
SECRET_PAIRS = ("apikey", "accesskey", "privatekey", "secretkey", "signingkey")
#: Under these keys a number is a count and anything else a secret.
COUNT_WORDS = frozenset(["tokens"])
#: Environments hold anything; they are left out as a whole.
ENVIRONMENT_WORDS = frozenset(["env", "environ", "environment"])

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#@]+@")


def redact(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Return a copy as plain JSON data, without environments and with secrets hidden by the names of their keys."""
    if depth <= 0:
        return "(too deep)"
    if isinstance(value, dict):
        return {
            str(key): HIDDEN if _is_secret(str(key), each) else redact(each, depth - 1)
            for key, each in value.items()
            if not ENVIRONMENT_WORDS.issuperset(_words(str(key)) or ["?"])
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(each, depth - 1) for each in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity
    return _CREDENTIALS.sub(f"{HIDDEN}@", str(value))


def _is_secret(key: str, value: Any) -> bool:
    words = _words(key)
    if COUNT_WORDS.intersection(words):
        return not isinstance(value, int | float)
    return bool(SECRET_WORDS.intersection(words)) or any(pair in "".join(words) for pair in SECRET_PAIRS)


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(key)]
