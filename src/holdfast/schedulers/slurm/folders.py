"""The jobs on the file system that login node and nodes share.

    <state folder>/slurm/<session>/<job id>   leads to the job's folder, which is there before the job has an id
    <state folder>/slurm/<session>/.jobs/<name>-<letters>/
        job.json, slurm.json  the request: the app with its environment, and what Slurm was asked for
        script                what sbatch got
        secret                what replicas that meet prove to each other
        bin/python            the interpreter for the app
        workspace/<role>/     the code that was shipped
        batch.log             what the batch program and srun said
        runs/<array number>/  batch.json: how often the job was started, and its last word; beat: it lives
            replicas/<role>/<number>/  one replica's job on its node: job.json, state.json
            logs/<role>/<number>/{stdout,stderr,combined}.log

Only this user can read it. A run without an array is in `runs/0`.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

from holdfast.errors import UnavailableError, UsageError
from holdfast.filenames import file_name
from holdfast.home import make_folders
from holdfast.schedulers.cluster import BIN, python_script
from holdfast.schedulers.local.folders import JobFolder, clear, read_record, write_json
from holdfast.schedulers.local.record import JobRecord, LocalRequest
from holdfast.schedulers.slurm.parse import BatchRecord
from holdfast.schedulers.slurm.render import SlurmRequest
from holdfast.typed import learned
from holdfast.wire.secret import write_secret

JOBS, RUNS = ".jobs", "runs"
_ID = re.compile(r"(?P<job>[0-9]+)(?:_(?P<number>[0-9]+))?")


class Run:
    """One run of a job: its only one, or that of one number of its array."""

    def __init__(self, job: Path, number: str = "0") -> None:
        self.job = job
        self.path = job / RUNS / number

    def read_batch(self) -> BatchRecord | None:
        """Return what the batch program wrote last; None where it was never started."""
        return read_record(self.path / "batch.json", lambda data: msgspec.convert(data, learned(BatchRecord)))

    def write_batch(self, record: BatchRecord) -> None:
        """Replace what the batch program wrote."""
        make_folders(self.path)
        write_json(self.path / "batch.json", msgspec.to_builtins(record), sync=True)

    def beat(self, number: int) -> None:
        """Show the other nodes that the batch program lives."""
        draft = self.path / "beat.new"
        draft.write_text(str(number))
        draft.replace(self.path / "beat")

    def read_beat(self) -> str:
        """Return what the batch program showed last."""
        try:
            return (self.path / "beat").read_text()
        except FileNotFoundError:
            return ""

    def replica(self, role: str, number: int) -> JobFolder:
        """Name the folder of one replica's own job."""
        return JobFolder(self.path / "replicas" / file_name(role) / str(number))

    def log(self, role: str, number: int) -> Path:
        """Name the folder of one replica's logs."""
        return self.path / "logs" / file_name(role) / str(number)

    def records(self, job: LocalRequest) -> dict[tuple[str, int], JobRecord]:
        """Return what every replica that has begun wrote last."""
        found = {(each.role, each.id): self.replica(each.role, each.id).read_state() for each in job.replicas}
        return {who: record for who, record in found.items() if record is not None}

    def forget_replicas(self) -> None:
        """Drop what replicas of an earlier start wrote; their logs stay."""
        clear(self.path / "replicas")


class SlurmJobs:
    """The jobs of one session."""

    def __init__(self, state_folder: Path, session: str) -> None:
        self.path = state_folder.absolute() / "slurm" / file_name(session)

    def folder(self, name: str, where: str = "") -> Path:
        """Name the folder of a job that is to be made."""
        return (Path(where).absolute() if where else self.path / JOBS) / name

    def find(self, app_id: str) -> tuple[Path, str] | None:
        """Return a job's folder and which run is meant; None where there is no such job."""
        match = _ID.fullmatch(app_id)
        if match is None:
            return None
        folder = self.path / match["job"]
        return (folder.resolve(), match["number"] or "") if folder.exists() else None

    def all(self) -> list[str]:
        """Return the ids of all jobs, the oldest first."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are all we need
        except FileNotFoundError:
            return []
        return [str(number) for number in sorted(int(name) for name in names if name.isdecimal())]

    def create(self, request: SlurmRequest, key: bytes | None) -> Path:
        """Make a job's folder with all that is in it before the job is submitted; without `key` there is no secret."""
        folder = Path(request.folder)
        try:
            make_folders(folder / BIN)
            make_folders(self.path)
            write_json(folder / "job.json", request.job.to_json())
            write_json(folder / "slurm.json", request.to_json())
            (folder / "script").write_text(request.script())
            python = folder / BIN / "python"
            python.write_text(python_script(request.python))
            python.chmod(0o700)
        except OSError as error:
            clear(folder)
            raise UnavailableError(
                f"cannot write the job to {folder}: {error.strerror or error}; name a folder that all nodes share with "
                "-cfg job_dir=FOLDER, or set HOLDFAST_HOME to one"
            ) from error
        if key is not None:
            write_secret(folder / "secret", key)
        return folder

    def name(self, job_id: str, folder: Path) -> None:
        """Let a job be found by its id; one of that id from before the cluster was set up anew is forgotten."""
        link = self.path / job_id
        draft = self.path / f".new-{os.getpid()}-{time.monotonic_ns()}"
        draft.symlink_to(folder)
        draft.replace(link)

    def remove(self, job_id: str) -> None:
        """Remove a job's folder, and then its id."""
        link = self.path / job_id
        clear(link.resolve())
        link.unlink(missing_ok=True)


def read_request(folder: Path) -> SlurmRequest:
    """Return the request in a job's folder; raises `UsageError` where there is none."""
    job = JobFolder(folder).read_request()
    found = None if job is None else read_record(folder / "slurm.json", lambda data: SlurmRequest.from_json(data, job))
    if found is None:
        raise UsageError(f"there is no job in {folder}: do all nodes share that folder?")
    return found
