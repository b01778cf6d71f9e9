"""Where each worker's output goes: `LogsSpecs` decides, `LogsDest` holds the paths.

The layout is `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}`. A
folder is never used twice and nothing is ever wiped: where `attempt_<n>` exists, because the membership
changed without a failure, the next one is `attempt_<n>_round_<r>`, or `attempt_<n>_<k>` where no round is
known.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.workers.default_log_dir import make_folder
from holdfast.workers.std import Std, to_map

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The destination of a stream that is not redirected: the agent's own.
SYS_STREAM = ""

RUN_ID_VARIABLE = "TORCHELASTIC_RUN_ID"
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
ROUND_VARIABLE = "HOLDFAST_ROUND"


class LogFolderIsFileError(UsageError, NotADirectoryError):
    """The folder that is named for the logs is a file."""


@dataclass
class LogsDest:
    """The paths for each local rank; an empty path means the agent's own stream.

    `tee_stdouts` and `tee_stderrs` hold the ranks whose file is also shown on the console.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = field(default_factory=str)
    filtered_stderr: str = field(default_factory=str)


class LogsSpecs(ABC):
    """Decides where output goes; plug-ins extend it under the entry point `torchrun.logs_specs`."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders for one attempt and return the paths; `envs` is what each local rank will see."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The folder under which everything goes."""


class DefaultLogsSpecs(LogsSpecs):
    """The layout at the top of this module.

    Without `log_dir` a temporary folder is made, and kept until many newer runs have made theirs. `os.devnull` means
    that no file stays: streams that are only redirected are dropped, those that are teed are still shown.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if log_dir not in (None, os.devnull) and Path(log_dir or "").is_file():
            raise LogFolderIsFileError(f"the log folder {log_dir} is a file; name a folder that exists or can be made")
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None
        self._reified = False  # whether an attempt has had its folder

    @property
    def root_log_dir(self) -> str:
        """The folder of this run; raises until it has been made."""
        if self._run_log_dir is None:
            raise UsageError("the log folder is made by open_folder or with the first attempt; call reify first")
        return self._run_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make a fresh folder for this attempt and return every path in it."""
        if not envs:
            return LogsDest()
        first = next(iter(envs.values()))
        folder = self.open_folder(first.get(RUN_ID_VARIABLE) or "none")
        if folder == os.devnull:
            return self._layout(None, sorted(envs))
        number, round_number = first.get(ATTEMPT_VARIABLE, "0"), first.get(ROUND_VARIABLE)
        try:
            attempt = _fresh_folder(Path(folder), number, round_number)
            dest = self._layout(attempt, sorted(envs))
        except OSError as error:
            if not self._reified:
                raise UsageError(
                    f"cannot make a log folder in {folder}: {error.strerror}; name another with --log-dir"
                ) from None
            # A running job continues: output that would go to files alone is dropped, the rest is shown.
            sentence = f"this attempt has no log files: cannot make a folder in {folder}: {error.strerror}"
            facts.warn("log_incomplete", sentence, path=folder)
            dest = self._layout(None, sorted(envs))
        self._reified = True
        return dest

    def open_folder(self, run_id: str) -> str:
        """Make the run's folder, once, and return it; the journal goes there before the first attempt does."""
        if self._run_log_dir is None:
            is_null = self._root_log_dir == os.devnull
            self._run_log_dir = os.devnull if is_null else self._make_log_dir(self._root_log_dir, run_id)
        return self._run_log_dir

    def _make_log_dir(self, log_dir: str | None, rdzv_run_id: str) -> str:
        readable = file_name(rdzv_run_id)
        if not log_dir:
            path, held = make_folder(f"{readable}_")
            weakref.finalize(self, os.close, held)
            return path
        base = Path(log_dir).absolute()
        try:
            base.mkdir(parents=True, exist_ok=True)
            return tempfile.mkdtemp(prefix=f"{readable}_", dir=base)
        except OSError as error:
            raise UsageError(
                f"cannot make a log folder in {base}: {error.strerror}; name another with --log-dir"
            ) from None

    def _layout(self, attempt: Path | None, ranks: list[int]) -> LogsDest:
        size = max(ranks) + 1
        redirects, tee = to_map(self._redirects, size), to_map(self._tee, size)
        dest = LogsDest()
        if attempt is not None:
            dest.filtered_stdout = str(attempt / "filtered_stdout.log")
            dest.filtered_stderr = str(attempt / "filtered_stderr.log")
        for rank in ranks:
            folder = attempt / str(rank) if attempt is not None else None
            if folder is not None:
                folder.mkdir()
            shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            wanted = redirects[rank] | tee[rank]
            for std, name, files, teed in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                path = str(folder / name) if folder is not None else os.devnull
                files[rank] = path if std in wanted else (SYS_STREAM if shown else os.devnull)
                if std in tee[rank] and shown:
                    teed[rank] = path
            dest.error_files[rank] = str(folder / "error.json") if folder is not None else os.devnull
        return dest


def _fresh_folder(run: Path, attempt: str, round_number: str | None) -> Path:
    """Make the first folder of this attempt's possible names that does not exist yet."""
    for name in _names(attempt, round_number):
        try:
            (run / name).mkdir(parents=True)
        except FileExistsError:
            continue
        return run / name
    raise AssertionError("the names never end")


def _names(attempt: str, round_number: str | None) -> Iterator[str]:
    yield f"attempt_{attempt}"
    base = f"attempt_{attempt}" if round_number is None else f"attempt_{attempt}_round_{round_number}"
    if round_number is not None:
        yield base
    number = 1
    while True:
        number += 1
        yield f"{base}_{number}"
