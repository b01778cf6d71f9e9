"""A call on disk: the function that travels to the workers, and what came of it on each rank.

The folder belongs to this user alone, because what is in it is unpickled: by the workers, which run as this user, and
by the program that submitted the call. Each file is written whole or not at all.
"""

from __future__ import annotations

import json
import linecache
import os
import pickle
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from holdfast.errors import UsageError
from holdfast.home import make_folders, state_folder

CALL_FILE, SETTING_FILE = "call.pkl", "call.json"
#: How many folders of earlier calls are kept.
CALLS_KEPT = 200


@dataclass(frozen=True)
class Call:
    """A function with its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None

    def __call__(self) -> Any:
        """Call it."""
        return self.function(*self.args, **(self.kwargs or {}))


@dataclass(frozen=True)
class Outcome:
    """What came of a call on one rank: a value, or an exception with its traceback as text.

    `error` is None for an exception that cannot be pickled; its traceback is there all the same.
    """

    rank: int
    world_size: int
    time: float
    failed: bool
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""


class CallFolder:
    """Where one call is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, base: str | os.PathLike[str] | None = None) -> CallFolder:
        """Make a fresh folder, in this user's state folder or in `base`; the oldest ones are removed.

        Raises `UsageError` where that cannot be written.
        """
        parent = state_folder() / "calls" if base is None else Path(base).absolute()
        path = parent / f"call-{secrets.token_hex(8)}"
        try:
            make_folders(parent)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(
                f"cannot write the call to {parent}: {error.strerror}; name another folder with folder=, or set "
                "HOLDFAST_HOME to one that you can write"
            ) from None
        if base is None:
            _forget_oldest(parent)
        return cls(path)

    def save(self, call: Call) -> None:
        """Write the call, and where this program finds its modules; raises `UsageError` if it cannot be pickled."""
        import cloudpickle

        try:
            data = cloudpickle.dumps(call)
        except Exception as error:  # pickling runs code of the user's objects
            name = getattr(call.function, "__qualname__", repr(call.function))
            raise UsageError(f"{name} and its arguments cannot be sent to another process: {error}") from error
        setting = {
            "path": [os.path.abspath(each) for each in sys.path],  # noqa: PTH100
            "folder": os.getcwd(),  # noqa: PTH109
            "sources": _typed_sources(call.function),
        }
        self._write(SETTING_FILE, json.dumps(setting).encode())
        self._write(CALL_FILE, data)

    def load(self) -> Call:
        """Read the call, with the modules of the program that wrote it within reach."""
        setting = json.loads((self.path / SETTING_FILE).read_bytes())
        sys.path += [each for each in setting["path"] if each not in sys.path]
        for name, lines in setting["sources"].items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        call: Call = pickle.loads((self.path / CALL_FILE).read_bytes())  # noqa: S301 - this user's own folder
        return call

    def write_outcome(self, outcome: Outcome) -> None:
        """Write what came of the call on one rank; the latest attempt of a rank counts."""
        import cloudpickle

        try:
            data = cloudpickle.dumps(outcome)
            pickle.loads(data)  # noqa: S301 - our own bytes: some objects can be pickled and not read back
        except Exception as error:  # noqa: BLE001 - pickling runs code of the user's objects
            told = outcome.traceback
            if not outcome.failed:
                told = (
                    f"the result of rank {outcome.rank}, {type(outcome.value).__name__}, cannot be sent back: {error!r}"
                )
            data = cloudpickle.dumps(
                Outcome(outcome.rank, outcome.world_size, outcome.time, failed=True, traceback=told)
            )
        self._write(f"rank-{outcome.rank}.pkl", data)

    def outcomes(self) -> dict[int, Outcome]:
        """Return what came of the call, by rank, as far as it is known; ranks beyond the last world are left out."""
        found: dict[int, Outcome] = {}
        for path in self.path.glob("rank-*.pkl"):
            outcome: Outcome = pickle.loads(path.read_bytes())  # noqa: S301 - this user's own folder
            found[outcome.rank] = outcome
        latest = max(found.values(), key=lambda each: each.time, default=None)
        return {rank: each for rank, each in sorted(found.items()) if latest is None or rank < latest.world_size}

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> None:
        draft = self.path / f".{name}.{os.getpid()}"
        draft.write_bytes(data)
        draft.replace(self.path / name)


def _typed_sources(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the lines of code that was typed into a notebook, by the name of their cell, for remote tracebacks.

    Those of the function and of what stands beside it; code from a file is found in that file.
    """
    namespace = getattr(function, "__globals__", {})
    codes = (getattr(each, "__code__", None) for each in (function, *list(namespace.values())))
    names = {code.co_filename for code in codes if isinstance(code, CodeType)}
    found = {}
    for name in names:
        entry: tuple[Any, ...] = linecache.cache.get(name, ())
        if len(entry) == 4 and entry[1] is None:  # a cell has no file, and so no time of change
            found[name] = list(entry[2])
    return found


def outcome_now(failed: bool, **more: Any) -> Outcome:
    """Return an outcome of this worker, by its environment."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Outcome(rank, world_size, time.time(), failed, **more)


def _forget_oldest(parent: Path) -> None:
    folders = sorted(parent.glob("call-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-CALLS_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
