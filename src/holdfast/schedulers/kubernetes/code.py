"""What travels with a job in Secrets: the request, the code, and how both are packed and unpacked."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UnavailableError
from holdfast.schedulers.kubernetes.render import CODE_BYTES
from holdfast.schedulers.local.record import LocalRequest, Shipment
from holdfast.schedulers.shipping import WORKSPACE, extract


def pack_request(request: LocalRequest) -> bytes:
    """Write a request down in few bytes."""
    return gzip.compress(json.dumps(request.to_json()).encode(), 6, mtime=0)


def unpack_request(data: bytes) -> LocalRequest:
    """Read what `pack_request` wrote."""
    return LocalRequest.from_json(json.loads(gzip.decompress(data)))


def read_request(path: Path) -> LocalRequest:
    """Read the request of a pod's job; raises `UnavailableError` where there is none."""
    try:
        return unpack_request(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"this pod's job cannot be read from {path}: {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Read what the pod is to know of the job's options."""
    found = json.loads(path.read_text()) if path.exists() else {}
    assert isinstance(found, dict)
    return found


def pack_code(shipments: Sequence[Shipment], home: Path) -> list[bytes]:
    """Return the code that is shipped, as it will lie in the job's folder, in pieces that a Secret can hold."""
    if not shipments:
        return []
    from holdfast.workspace.shipment import walk

    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for shipment in shipments:
            for source, below in shipment.roots.items():
                root = Path(source)
                where = "/".join(filter(None, [WORKSPACE, shipment.folder, below]))
                if root.is_file():
                    tar.add(root, f"{where}/{root.name}")
                    continue
                made = tarfile.TarInfo(where)
                made.type, made.mode = tarfile.DIRTYPE, 0o700
                tar.addfile(made)
                for path, entry in walk(root, avoid={home.resolve()}):
                    tar.add(entry.path, f"{where}/{path}", recursive=False)
    data = buffer.getvalue()
    return [data[start : start + CODE_BYTES] for start in range(0, len(data), CODE_BYTES)]


def unpack(secrets: Path, folder: Path) -> None:
    """Put the code in place, where some came with the job."""
    pieces = sorted(secrets.glob("code-*"))
    if pieces:
        data = b"".join(piece.read_bytes() for piece in pieces)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            extract(tar, folder)
