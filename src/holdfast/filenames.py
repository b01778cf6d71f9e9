"""One way to turn a run id or a job's name, which may hold anything, into the name of a file. Pure."""

from __future__ import annotations

#: File systems allow 255 bytes; the rest is for endings that callers add.
BYTES_MAX = 150
#: Of a longer name, so much stays readable before the checksum.
READABLE_MAX = 80
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


def file_name(text: str) -> str:
    """Return a visible name of one path component that is different for every text.

    Letters, digits, `-`, `_` and `.` stay as they are, except a dot at the beginning. Every other character becomes
    `%` and the hexadecimal digits of each of its bytes. A name that would be too long is cut and ends in `%~` and a
    checksum; the empty text is `%`. No other name has a `%` that two digits do not follow, so none of these collide.
    """
    name = "".join(c if c in _PLAIN else _escaped(c) for c in text)
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > BYTES_MAX:
        from hashlib import sha256

        name = f"{name[:READABLE_MAX]}%~{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
    return name or "%"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
