"""What this machine remembers of its jobs on other hosts: where they are, and how they ended.

<state folder>/ssh/<session>/<app id>/
    job.json, ssh.json  the request: the app, and which host runs which replica
    ended.json          the replicas' last states, once the job has ended: hosts need not be asked again
    cancel              there once the job was cancelled
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from holdfast.errors import UnavailableError, UsageError
from holdfast.filenames import file_name
from holdfast.home import make_folders
from holdfast.schedulers.local.folders import JobFolder, clear, read_record, write_json
from holdfast.schedulers.ssh.parse import Reply, parse_reply
from holdfast.schedulers.ssh.render import SshRequest
from holdfast.specs.states import AppState, ReplicaStatus


class SshJobs:
    """The jobs of one session."""

    def __init__(self, state_folder: Path, session: str) -> None:
        self.path = state_folder.absolute() / "ssh" / file_name(session)

    def all(self) -> list[str]:
        """Return the ids of all jobs, by name."""
        try:
            return sorted(os.listdir(self.path))  # noqa: PTH208 - names are all we need
        except FileNotFoundError:
            return []

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return (self._folder(app_id) / "ssh.json").exists()

    def create(self, request: SshRequest) -> None:
        """Write a job down."""
        folder = self._folder(request.job.app_id)
        try:
            make_folders(folder)
            write_json(folder / "job.json", request.job.to_json())
            write_json(folder / "ssh.json", request.to_json())
        except OSError as error:
            clear(folder)
            raise UnavailableError(
                f"cannot write the job to {folder}: {error.strerror or error}; "
                "set HOLDFAST_HOME to a folder that you can write"
            ) from error

    def read(self, app_id: str) -> SshRequest | None:
        """Return a job's request; None where there is no such job."""
        folder = self._folder(app_id)
        job = JobFolder(folder).read_request()
        if job is None:
            return None
        return read_record(folder / "ssh.json", lambda data: SshRequest.from_json(data, job))

    def known(self, app_id: str) -> SshRequest:
        """Return a job's request; raises `UsageError` where there is no such job."""
        found = self.read(app_id)
        if found is None:
            raise UsageError(f"there is no job {app_id} here; `holdfast list -s ssh` lists the ones that exist")
        return found

    def submitted_at(self, app_id: str) -> float:
        """Return when a job was written down."""
        return (self._folder(app_id) / "job.json").stat().st_mtime

    def cancelled(self, app_id: str) -> bool:
        """Whether a job was cancelled."""
        return (self._folder(app_id) / "cancel").exists()

    def cancel(self, app_id: str) -> None:
        """Note that a job was cancelled."""
        (self._folder(app_id) / "cancel").touch(mode=0o600)

    def read_ended(self, app_id: str, request: SshRequest) -> list[Reply] | None:
        """Return the replicas' last states; None where the job had not ended when it was last looked at."""
        found = read_record(self._folder(app_id) / "ended.json", dict)
        if found is None:
            return None
        pairs = zip(request.placed, found["replicas"], strict=True)
        return [parse_reply(placed, {"replica": each}) for placed, each in pairs]

    def write_ended(self, app_id: str, replicas: list[ReplicaStatus]) -> None:
        """Note how a job ended."""
        states: list[dict[str, Any]] = [
            {**dataclasses.asdict(each), "state": AppState(each.state).name} for each in replicas
        ]
        write_json(self._folder(app_id) / "ended.json", {"replicas": states})

    def remove(self, app_id: str) -> None:
        """Forget a job."""
        clear(self._folder(app_id))

    def _folder(self, app_id: str) -> Path:
        return self.path / file_name(app_id)
