"""One thin client for each job service: the official library, or the commands of LSF."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.home import make_folders, state_folder
from holdfast.schedulers.cloud import aws_batch, google, lsf, sagemaker
from holdfast.schedulers.cloud.common import SESSION_TAG, JobInfo, Option, Site, safe_name
from holdfast.specs.app import AppDef
from holdfast.specs.cfg import CfgVal
from holdfast.wire.secret import make_key, write_secret

Lines = list[tuple[float, str]]
#: What a job that we end is told.
REASON = "cancelled by holdfast"
#: How long a command of LSF may take.
ANSWER_S = 60.0


def _refused(service: str, error: Exception) -> HoldfastError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return UnavailableError(f"{service} refused: {said}")


class _Aws:
    """What the two services of AWS share; `make` returns boto3's client of a service."""

    service = ""

    def __init__(self, make: Callable[[str], Any] | None = None) -> None:
        self._make = make
        self._made: dict[str, Any] = {}

    def _client(self, name: str) -> Any:
        if name not in self._made:
            make = self._make
            if make is None:
                try:
                    import boto3
                except ImportError as error:
                    raise UsageError(f"AWS's library is not installed ({error}): pip install 'holdfast[aws]'") from None
                make = boto3.client
            try:
                self._made[name] = make(name)
            except Exception as error:  # noqa: BLE001 - no region, no credentials: the library says which
                raise _refused(self.service, error) from None
        return self._made[name]

    def _call(self, name: str, method: str, **request: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client(name), method)(**request)
        except HoldfastError:
            raise
        except Exception as error:
            if _is_missing(error):
                return {}
            raise _refused(self.service, error) from error
        return answer

    def _log(self, group: str, stream: str, after: Any) -> tuple[Lines, Any]:
        """Return events of a log stream of CloudWatch, and where to go on."""
        if not stream:
            return [], after
        where = {"nextToken": after} if after else {}
        answer = self._call(
            "logs", "get_log_events", logGroupName=group, logStreamName=stream, startFromHead=True, **where
        )
        lines = [(each["timestamp"] / 1000, each["message"].rstrip("\n")) for each in answer.get("events", ())]
        return lines, answer.get("nextForwardToken", after)


def _is_missing(error: Exception) -> bool:
    code = str((getattr(error, "response", None) or {}).get("Error", {}).get("Code", ""))
    return code in ("ResourceNotFound", "ResourceNotFoundException") or "not found" in str(error)


class AwsBatch(_Aws):
    """AWS Batch."""

    service = "AWS Batch"

    def options(self) -> Sequence[Option]:
        """Return the run options."""
        return aws_batch.OPTIONS

    def render(self, app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
        """Make the requests."""
        return aws_batch.render(app, cfg, site)

    def submit(self, request: Mapping[str, Any]) -> str:
        """Register the job's definition and submit the job."""
        definition = self._call("batch", "register_job_definition", **request["register_job_definition"])
        job = {**request["submit_job"], "jobDefinition": definition["jobDefinitionArn"]}
        return str(self._call("batch", "submit_job", **job)["jobId"])

    def find(self, app_id: str) -> JobInfo | None:
        """Return what AWS says of a job."""
        jobs = self._call("batch", "describe_jobs", jobs=[app_id]).get("jobs") or []
        return aws_batch.parse(jobs[0]) if jobs else None

    def all(self, cfg: Mapping[str, CfgVal]) -> list[JobInfo]:
        """Return our jobs of one queue, or of all."""
        queues = [str(cfg["queue"])] if cfg.get("queue") else self._queues()
        ids: list[str] = []
        for queue in queues:
            # Without a filter only jobs that run are told.
            pages = self._client("batch").get_paginator("list_jobs")
            found = pages.paginate(jobQueue=queue, filters=[{"name": "AFTER_CREATED_AT", "values": ["0"]}])
            ids += [each["jobId"] for page in found for each in page["jobSummaryList"]]
        chunks = [ids[at : at + 100] for at in range(0, len(ids), 100)]
        details = [each for chunk in chunks for each in self._call("batch", "describe_jobs", jobs=chunk)["jobs"]]
        return [aws_batch.parse(each) for each in details if SESSION_TAG in (each.get("tags") or {})]

    def _queues(self) -> list[str]:
        return [each["jobQueueName"] for each in self._call("batch", "describe_job_queues").get("jobQueues", ())]

    def stop(self, app_id: str) -> None:
        """End a job."""
        self._call("batch", "terminate_job", jobId=app_id, reason=REASON)

    def lines(self, info: JobInfo, role: str, number: int, after: Any) -> tuple[Lines, Any]:
        """Return lines of a replica, from CloudWatch."""
        offset = 0
        for each in info.roles:
            if each.name == role:
                break
            offset += each.num_replicas
        alone = sum(each.num_replicas for each in info.roles) == 1
        job = info.id if alone else f"{info.id}#{offset + number}"
        details = self._call("batch", "describe_jobs", jobs=[job]).get("jobs") or [{}]
        stream = str((details[0].get("container") or {}).get("logStreamName") or "")
        return self._log("/aws/batch/job", stream, after)


class SageMaker(_Aws):
    """Training jobs of SageMaker."""

    service = "SageMaker"

    def options(self) -> Sequence[Option]:
        """Return the run options."""
        return sagemaker.OPTIONS

    def render(self, app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
        """Make the request."""
        return sagemaker.render(app, cfg, site)

    def submit(self, request: Mapping[str, Any]) -> str:
        """Create the training job."""
        self._call("sagemaker", "create_training_job", **request)
        return str(request["TrainingJobName"])

    def find(self, app_id: str) -> JobInfo | None:
        """Return what AWS says of a job."""
        detail = self._call("sagemaker", "describe_training_job", TrainingJobName=app_id)
        if not detail:
            return None
        tags = self._call("sagemaker", "list_tags", ResourceArn=detail["TrainingJobArn"]).get("Tags", ())
        return sagemaker.parse(detail, {each["Key"]: each["Value"] for each in tags})

    def all(self, cfg: Mapping[str, CfgVal]) -> list[JobInfo]:
        """Return our jobs."""
        del cfg
        pages = self._client("sagemaker").get_paginator("list_training_jobs").paginate()
        names = [each["TrainingJobName"] for page in pages for each in page["TrainingJobSummaries"]]
        found = [self.find(name) for name in names]
        return [each for each in found if each is not None and each.session]

    def stop(self, app_id: str) -> None:
        """End a job."""
        self._call("sagemaker", "stop_training_job", TrainingJobName=app_id)

    def lines(self, info: JobInfo, role: str, number: int, after: Any) -> tuple[Lines, Any]:
        """Return lines of a replica, from CloudWatch."""
        del role
        group = "/aws/sagemaker/TrainingJobs"
        prefix = f"{info.id}/algo-{number + 1}-"
        found = self._call("logs", "describe_log_streams", logGroupName=group, logStreamNamePrefix=prefix)
        streams = found.get("logStreams") or []
        return self._log(group, str(streams[0]["logStreamName"]) if streams else "", after)


class GoogleBatch:
    """Google Batch, by Google's API client; `make` returns the client of a service."""

    def __init__(self, make: Callable[[str, str], Any] | None = None) -> None:
        self._make = make

    def options(self) -> Sequence[Option]:
        """Return the run options."""
        return google.OPTIONS

    def _api(self, name: str, version: str) -> Any:
        if self._make is not None:
            return self._make(name, version)
        try:
            from googleapiclient import discovery
        except ImportError as error:
            raise UsageError(f"Google's library is not installed ({error}): pip install 'holdfast[gcp]'") from None
        try:
            return discovery.build(name, version, cache_discovery=False)
        except Exception as error:  # noqa: BLE001 - no credentials: the library says which
            raise _refused("Google Batch", error) from None

    def _jobs(self) -> Any:
        return self._api("batch", "v1").projects().locations().jobs()

    def _do(self, call: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = call.execute()
        except Exception as error:
            if str(getattr(getattr(error, "resp", None), "status", "")) == "404":
                return {}
            raise _refused("Google Batch", error) from error
        return answer

    def render(self, app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
        """Make the request."""
        return google.render(app, cfg, site)

    def submit(self, request: Mapping[str, Any]) -> str:
        """Create the job."""
        return google.make_id(str(self._do(self._jobs().create(**request))["name"]))

    def find(self, app_id: str) -> JobInfo | None:
        """Return what Google says of a job."""
        name = google.split_id(app_id)
        found = self._do(self._jobs().get(name=name)) if name is not None else {}
        return google.parse(found) if found else None

    def all(self, cfg: Mapping[str, CfgVal]) -> list[JobInfo]:
        """Return our jobs of a project and a region."""
        if not cfg.get("project"):
            raise UsageError("name the project whose jobs are listed, in .holdfast.toml: [scheduler.gcp_batch] project")
        parent = f"projects/{cfg['project']}/locations/{cfg.get('location') or 'us-central1'}"
        jobs = self._do(self._jobs().list(parent=parent)).get("jobs") or ()
        return [google.parse(each) for each in jobs if SESSION_TAG in (each.get("labels") or {})]

    def stop(self, app_id: str) -> None:
        """End a job."""
        self._do(self._jobs().cancel(name=google.split_id(app_id), body={}))

    def lines(self, info: JobInfo, role: str, number: int, after: Any) -> tuple[Lines, Any]:
        """Return lines of a replica, from Cloud Logging."""
        from datetime import datetime

        del role
        project = info.id.partition(":")[0]
        wanted = f'labels.job_uid="{info.url}" AND labels.task_id:"task/{info.url}-group0-{number}/"'
        body = {
            "resourceNames": [f"projects/{project}"],
            "filter": wanted + (f' AND timestamp>"{after}"' if after else ""),
            "orderBy": "timestamp asc",
        }
        entries = self._do(self._api("logging", "v2").entries().list(body=body)).get("entries") or []
        lines = [
            (datetime.fromisoformat(each["timestamp"]).timestamp(), str(each.get("textPayload", "")))
            for each in entries
        ]
        return lines, entries[-1]["timestamp"] if entries else after


class Lsf:
    """LSF, by its own commands; `run` runs one and returns its exit code and what it printed."""

    def __init__(
        self, run: Callable[[list[str], str], tuple[int, str, str]] | None = None, home: Path | None = None
    ) -> None:
        self._run = run or _run_command
        self._home = home

    def options(self) -> Sequence[Option]:
        """Return the run options."""
        return lsf.OPTIONS

    def render(self, app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
        """Make the request."""
        below = str(cfg.get("jobdir") or (self._home or state_folder()).absolute() / "lsf")
        return lsf.render(app, cfg, site, f"{below}/{safe_name(site.app_id, 120)}")

    def submit(self, request: Mapping[str, Any]) -> str:
        """Write the job's files and submit it."""
        folder = Path(request["folder"])
        make_folders(folder)
        write_secret(folder / "secret", make_key())
        (folder / "replica.sh").write_text(request["replica"])
        (folder / "replica.sh").chmod(0o700)
        code, out, said = self._run(["bsub", *request["bsub"]], request["script"])
        number = lsf.parse_submitted(out)
        if code or not number:
            raise UnavailableError(f"bsub refused the job: {(said or out).strip()}")
        return number

    def find(self, app_id: str) -> JobInfo | None:
        """Return what LSF says of a job."""
        if not app_id.isdecimal():
            return None
        _, out, _ = self._run(["bjobs", "-json", "-a", "-o", lsf.FIELDS, app_id], "")
        return next(iter(lsf.parse(out)), None)

    def all(self, cfg: Mapping[str, CfgVal]) -> list[JobInfo]:
        """Return this user's jobs that are ours."""
        del cfg
        _, out, _ = self._run(["bjobs", "-json", "-a", "-o", lsf.FIELDS], "")
        return [each for each in lsf.parse(out) if each.url]

    def stop(self, app_id: str) -> None:
        """End a job."""
        self._run(["bkill", app_id], "")

    def lines(self, info: JobInfo, role: str, number: int, after: Any) -> tuple[Lines, Any]:
        """Return lines of a replica, from its file; LSF keeps no times."""
        start = int(after or 0)
        try:
            with Path(info.url, "logs", role, f"{number}.log").open("rb") as file:
                file.seek(start)
                data = file.read()
        except OSError:
            return [], start
        whole = data[: data.rfind(b"\n") + 1]
        return [(0.0, line.decode(errors="backslashreplace")) for line in whole.splitlines()], start + len(whole)


def _run_command(words: list[str], stdin: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except FileNotFoundError:
        raise UnavailableError(f"the command {words[0]} was not found: submit from a host of LSF") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{words[0]} did not answer within {ANSWER_S:g} s") from None
    return done.returncode, done.stdout, done.stderr
