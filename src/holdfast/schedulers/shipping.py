"""What travels with a job: the code that each role needs, and the secret that its replicas share."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from holdfast.filenames import file_name
from holdfast.schedulers.local.record import Shipment
from holdfast.specs import AppDef

#: Where shipped code lies in a job's folder, and where files are kept that the next job may need again.
WORKSPACE, CACHE = "workspace", "workspace-cache"


def plan_copies(app: AppDef, copies: str, *, as_it_lies: bool = False) -> tuple[dict[str, str], list[Shipment]]:
    """Return the folder in which the replicas of each role with a workspace run, and what is copied there.

    Roles with equal workspaces share a copy. With `as_it_lies` a workspace that is one folder is not copied.
    """
    cwds: dict[str, str] = {}
    shipments: list[Shipment] = []
    for role in app.roles:
        if not role.workspace:
            continue
        from holdfast.workspace.shipment import roots

        found = roots(role.workspace)
        only = next(iter(found)) if len(found) == 1 and not any(found.values()) else None
        if only is not None and only.is_dir() and as_it_lies:
            cwds[role.name] = str(only)
            continue
        wanted = {str(source): below for source, below in found.items()}
        shipment = next((each for each in shipments if each.roots == wanted), None)
        if shipment is None:
            shipment = Shipment(file_name(role.name), wanted)
            shipments.append(shipment)
        cwds[role.name] = f"{copies}/{shipment.folder}"
    return cwds, shipments


def ship_all(shipments: Sequence[Shipment], job: Path, home: Path) -> None:
    """Copy code into a job's folder; what has not changed since an earlier job is shared with it."""
    if shipments:
        from holdfast.workspace.shipment import ship

        for each in shipments:
            ship(each.roots, job / WORKSPACE / each.folder, home / CACHE, avoid=[home])


def sizes_of(shipments: Sequence[Shipment], home: Path) -> dict[str, tuple[int, int]]:
    """Return how many files and bytes would be copied, by source."""
    if not shipments:
        return {}
    from holdfast.workspace.shipment import survey

    found = {source: survey(Path(source), avoid=[home]) for each in shipments for source in each.roots}
    return {source: (size.files, size.bytes) for source, size in found.items()}


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack code that was shipped; links of a workspace may lead out of it, as they do at home."""
    if hasattr(tarfile, "tar_filter"):
        tar.extractall(folder, filter="tar")
    else:  # Python 3.11.0 to 3.11.3, as on Debian 12
        tar.extractall(folder)


def take_secret(environ: dict[str, str]) -> bytes | None:
    """Return the secret for a job, and take it out of an environment that the job gets; None where there is none.

    One that the user chose is used, else a fresh one that only this job has.
    """
    from holdfast.wire.secret import INSECURE_VARIABLE, SECRET_VARIABLE, VARIABLES, find_secret, make_key

    if not any(environ.get(name) for name in VARIABLES):
        return make_key()
    found = find_secret(environ=environ)
    environ.pop(SECRET_VARIABLE, None)
    if not found.key:
        assert environ.get(INSECURE_VARIABLE)
        return None
    return found.key
