"""Storage backends: a folder of this host, or any URL that fsspec knows."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import UsageError

_WRITE_BYTES = 8 << 20


class Backend(Protocol):
    """Files under one root; paths are relative, with slashes."""

    def write(self, path: str, data: memoryview) -> None:
        """Write a new file; it must survive a crash once this has returned."""

    def publish(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it; readers see the whole file or the one before."""

    def read(self, path: str) -> bytes:
        """Read a small file; raises `FileNotFoundError`."""

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        """Read a file from `start` on into `target`; return the number of bytes. Called by several threads."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files of a folder with their sizes; empty if there is no such folder."""

    def folders(self) -> list[str]:
        """Return the names of the folders at the root."""

    def age_of(self, path: str) -> float | None:
        """Return when a file was written, in seconds since the epoch, if that is known."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""


def backend_of(url: str | os.PathLike[str], **options: Any) -> Backend:
    """Return the backend for a path or URL; raises `UsageError` if that needs a package that is not installed."""
    text = os.fspath(url)
    if "://" not in text and "::" not in text:
        return LocalBackend(Path(text))
    if text.startswith("file://") and not options:
        return LocalBackend(Path(text.removeprefix("file://")))
    return FsspecBackend(text, **options)


class LocalBackend(Backend):
    """A folder of this host, or of a file system that it has mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def write(self, path: str, data: memoryview) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb", buffering=0) as file:
                done = 0
                while done < len(data):
                    done += file.write(data[done : done + _WRITE_BYTES])
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            raise

    def publish(self, path: str, data: bytes) -> None:
        """Write a draft beside the file and rename it; both the file and its name are on the disk at the end."""
        target = self._root / path
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        self.write(str(draft.relative_to(self._root)), memoryview(data))
        draft.replace(target)
        for folder in (target.parent, self._root):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        done = 0
        with (self._root / path).open("rb", buffering=0) as file:
            file.seek(start)
            while done < len(target) and (count := file.readinto(target[done:])):
                done += count
        return done

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as found:
                return {each.name: each.stat().st_size for each in found if each.is_file()}
        except FileNotFoundError:
            return {}

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._root) as found:
                return [each.name for each in found if each.is_dir()]
        except FileNotFoundError:
            return []

    def age_of(self, path: str) -> float | None:
        try:
            return (self._root / path).stat().st_mtime
        except OSError:
            return None

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            (self._root / folder).rmdir()


class FsspecBackend(Backend):
    """Any storage that fsspec knows: object stores, HDFS, memory, and plugins.

    An object appears when it is written completely, so publishing is writing one small object last.
    """

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import fsspec
        except ImportError:
            raise UsageError(
                f"'{url}' needs fsspec: run pip install 'holdfast[storage]', or give a local path"
            ) from None
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:  # fsspec's errors for an unknown scheme
            raise UsageError(f"cannot use '{url}' as storage: {error}") from None
        self._url = url
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def write(self, path: str, data: memoryview) -> None:
        target = self._path(path)
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        with self._fs.open(target, "wb") as file:
            for start in range(0, len(data), _WRITE_BYTES):
                file.write(data[start : start + _WRITE_BYTES])

    def publish(self, path: str, data: bytes) -> None:
        """Write a small object in one piece."""
        self._fs.pipe_file(self._path(path), data)

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(path)))

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        data = self._fs.cat_file(self._path(path), start=start, end=start + len(target))
        target[: len(data)] = data
        return len(data)

    def sizes(self, folder: str) -> dict[str, int]:
        return {_name(each): int(each["size"] or 0) for each in self._list(folder) if each["type"] == "file"}

    def folders(self) -> list[str]:
        return [_name(each) for each in self._list("") if each["type"] == "directory"]

    def age_of(self, path: str) -> float | None:
        try:
            return float(self._fs.modified(self._path(path)).timestamp())
        except (NotImplementedError, OSError, AttributeError):
            return None

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(path))

    def remove_folder(self, folder: str) -> None:
        with contextlib.suppress(OSError, NotImplementedError):
            self._fs.rmdir(self._path(folder))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _list(self, folder: str) -> Iterable[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            found: list[dict[str, Any]] = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return found


def _name(found: dict[str, Any]) -> str:
    return str(found["name"]).rstrip("/").rpartition("/")[2]
