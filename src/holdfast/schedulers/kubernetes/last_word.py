"""How a replica ended, in the few bytes of a pod's termination message. Pure.

Kubernetes keeps 4096 bytes of what a container writes to its termination log, and cuts off the rest. So the record is
packed where it is long, and a traceback that is still too long loses frames in its middle.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import msgspec

from holdfast.schedulers.local.record import ReplicaRecord
from holdfast.typed import learned

BYTES_MAX = 4096
PLAIN, PACKED = "holdfast:1:", "holdfast:z:"
#: Of a long text so many characters stay, half of them from each end; each try keeps half of the one before.
KEPT_CHARS = (16_384, 8_192, 4_096, 2_048, 1_024, 256)
#: More than any record has when it is unpacked.
UNPACKED_BYTES_MAX = 1024 * 1024


def encode(record: ReplicaRecord) -> str:
    """Write a record down so that it fits."""
    data: dict[str, Any] = msgspec.to_builtins(record)
    for kept in (None, *KEPT_CHARS):
        text = json.dumps(data if kept is None else _shortened(data, kept), separators=(",", ":"))
        if len(PLAIN) + len(text) <= BYTES_MAX:
            return PLAIN + text
        packed = PACKED + base64.b85encode(zlib.compress(text.encode(), 9)).decode()
        if len(packed) <= BYTES_MAX:
            return packed
    return PLAIN + json.dumps({"role": record.role, "id": record.id, "exit_code": record.exit_code})


def decode(message: str) -> ReplicaRecord | None:
    """Read what `encode` wrote; None for anything else, as for what another program has printed last."""
    message = message.strip()
    try:
        if message.startswith(PLAIN):
            text = message.removeprefix(PLAIN).encode()
        elif message.startswith(PACKED):
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(base64.b85decode(message.removeprefix(PACKED)), UNPACKED_BYTES_MAX)
        else:
            return None
        return msgspec.json.decode(text, type=learned(ReplicaRecord))
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None


def _shortened(data: dict[str, Any], kept: int) -> dict[str, Any]:
    """Cut long texts in their middle, also those in the error file, which is JSON itself."""
    found = {key: _cut(value, kept) if isinstance(value, str) else value for key, value in data.items()}
    try:
        error = json.loads(data.get("error") or "null")
    except ValueError:
        error = None
    found["error"] = json.dumps(_cut_all(error, kept)) if error else ""
    return found


def _cut_all(value: Any, kept: int) -> Any:
    if isinstance(value, str):
        return _cut(value, kept)
    if isinstance(value, dict):
        return {key: _cut_all(each, kept) for key, each in value.items()}
    return value


def _cut(text: str, kept: int) -> str:
    if len(text) <= kept:
        return text
    lost = len(text) - kept
    return f"{text[: kept // 2]}\n[... {lost} characters left out ...]\n{text[-(kept // 2) :]}"
