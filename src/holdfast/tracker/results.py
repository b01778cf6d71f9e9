"""Results by key, for programs that store a few numbers for others to read."""

from __future__ import annotations

import json
import posixpath
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

KeyType = int | str
ResultType = int | float | str


class ResultTracker(ABC):
    """Keeps results by key: `tracker["trial_1"] = {"loss": 0.2}`, and `tracker["trial_1"]["loss"]` anywhere else."""

    @abstractmethod
    def put(self, key: KeyType, **results: ResultType) -> None:
        """Keep results under a key, in place of those that were there."""

    @abstractmethod
    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results of a key; nothing if there are none."""

    def __setitem__(self, key: KeyType, results: dict[str, ResultType]) -> None:
        self.put(key, **results)

    def __getitem__(self, key: KeyType) -> dict[str, ResultType]:
        return self.get(key)


class FsspecResultTracker(ResultTracker):
    """Keeps each key's results in a file of JSON, below a folder or URL that fsspec reaches."""

    def __init__(self, tracker_base: str) -> None:
        self._fs, self._root = _fsspec().core.url_to_fs(tracker_base)

    def put(self, key: KeyType, **results: ResultType) -> None:
        """Keep results under a key, in place of those that were there."""
        path = posixpath.join(self._root, str(key))
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, json.dumps(results, indent=2).encode())

    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results of a key; nothing if there are none."""
        try:
            found: dict[str, ResultType] = json.loads(self._fs.cat_file(posixpath.join(self._root, str(key))))
        except FileNotFoundError:
            return {}
        return found


def _fsspec() -> ModuleType:
    try:
        import fsspec
    except ImportError:
        raise UsageError("results need fsspec: pip install 'holdfast[storage]'") from None
    return fsspec  # type: ignore[no-any-return]
