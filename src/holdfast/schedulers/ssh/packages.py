"""Holdfast and the packages that it needs, for hosts that have neither.

They travel as they are installed here, so they serve a host with the same version of Python on the same kind of
machine. A host keeps them under a name that is made of their versions and of Holdfast's own files.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

import holdfast

#: More than the packages can be: something else lies among them.
BYTES_MAX = 256 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@functools.cache
def digest() -> str:
    """Return the name under which hosts keep the packages; another for other files or versions."""
    found = hashlib.sha256()
    for name in sorted(_needed()):
        found.update(f"{name}=={metadata.version(name)}\n".encode())
    found.update(sysconfig.get_platform().encode() + sysconfig.get_python_version().encode())
    for path in _own_files():
        found.update(f"{path.relative_to(_root())}\n".encode() + path.read_bytes())
    return f"{holdfast.__version__}-{found.hexdigest()[:16]}"


def pack() -> bytes:
    """Return a tar file of Holdfast and of every package that it needs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for path in _own_files():
            tar.add(path, str(path.relative_to(_root().parent)))
        for name in ("holdfast", *sorted(_needed())):
            _add_distribution(tar, name)
    return buffer.getvalue()


def _add_distribution(tar: tarfile.TarFile, name: str) -> None:
    total = 0
    for file in metadata.distribution(name).files or ():
        path = Path(str(file.locate()))
        if str(file).startswith("..") or "__pycache__" in file.parts or not path.is_file():
            continue  # scripts and manuals lie elsewhere
        if name == "holdfast" and not file.parts[0].endswith(".dist-info"):
            continue  # its own files come from where they are, also where they are being worked on
        total += path.stat().st_size
        if total > BYTES_MAX:
            raise ValueError(f"the package {name} is too large to be sent to a host")
        tar.add(path, str(file))


def _root() -> Path:
    return Path(holdfast.__file__).parent


def _own_files() -> list[Path]:
    return sorted(path for path in _root().rglob("*.py") if "__pycache__" not in path.parts)


def _needed() -> set[str]:
    """Return the names of the packages that Holdfast needs, and that those need."""
    found: set[str] = set()
    pending = ["holdfast"]
    while pending:
        for requirement in metadata.requires(pending.pop()) or ():
            match = _NAME.match(requirement)
            if match is None or "extra ==" in requirement or match[0] in found:
                continue
            try:
                metadata.distribution(match[0])
            except metadata.PackageNotFoundError:
                continue  # needed only by other versions of Python, or on other machines
            found.add(match[0])
            pending.append(match[0])
    return found
