"""The Ray Jobs API, by Ray's own client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers.ray.parse import JobInfo


class RayClient:
    """The jobs of one cluster."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._api: Any = None

    def _client(self) -> Any:
        if self._api is None:
            try:
                from ray.job_submission import JobSubmissionClient
            except ImportError as error:
                raise UsageError(f"Ray is not installed here ({error}): pip install 'holdfast[ray]'") from None
            logging.getLogger("ray").setLevel(logging.WARNING)  # it tells each upload
            try:
                self._api = JobSubmissionClient(self._address)
            except (ConnectionError, RuntimeError, OSError) as error:
                raise self._silent(error) from None
        return self._api

    def _silent(self, error: Exception) -> UnavailableError:
        said = str(error).strip().splitlines() or ["no reason is given"]
        return UnavailableError(
            f"no Ray cluster answers at {self._address}: {said[-1]}; "
            "name its dashboard with -cfg dashboard_address=HOST:PORT"
        )

    def submit(self, **what: Any) -> str:
        """Submit a job and return its id."""
        client = self._client()
        try:
            return str(client.submit_job(**what))
        except (ConnectionError, OSError) as error:
            raise self._silent(error) from None
        except RuntimeError as error:
            raise UnavailableError(f"Ray refused the job: {_last(error)}") from None

    def find(self, app_id: str) -> JobInfo | None:
        """Return what Ray says of a job, or None where there is none of that id."""
        try:
            return _info(self._client().get_job_info(app_id))
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return None
            raise UnavailableError(f"Ray gives no information about {app_id}: {_last(error)}") from None
        except (ConnectionError, OSError) as error:
            raise self._silent(error) from None

    def all(self) -> list[JobInfo]:
        """Return every job that was submitted by the Ray Jobs API."""
        try:
            return [_info(each) for each in self._client().list_jobs() if each.submission_id]
        except (ConnectionError, OSError) as error:
            raise self._silent(error) from None

    def log(self, app_id: str) -> list[str]:
        """Return the log of a job, as far as it goes."""
        try:
            return str(self._client().get_job_logs(app_id)).splitlines()
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return []
            raise UnavailableError(f"Ray does not return the log of {app_id}: {_last(error)}") from None

    def follow(self, app_id: str) -> Iterator[str]:
        """Yield the lines of a job's log from the beginning, as they come, until the job has ended."""
        stream = self._client().tail_job_logs(app_id)
        loop = asyncio.new_event_loop()
        rest = ""
        try:
            while True:
                try:
                    chunk = loop.run_until_complete(anext(stream))
                except StopAsyncIteration:
                    break
                *lines, rest = (rest + chunk).split("\n")
                yield from lines
            if rest:
                yield rest
        finally:
            loop.run_until_complete(stream.aclose())
            loop.close()

    def stop(self, app_id: str) -> None:
        """Ask Ray to stop a job."""
        self._client().stop_job(app_id)

    def delete(self, app_id: str) -> None:
        """Remove a job that has ended."""
        self._client().delete_job(app_id)


def _info(details: Any) -> JobInfo:
    return JobInfo(
        id=str(details.submission_id),
        status=str(getattr(details.status, "value", details.status)),
        message=str(details.message or ""),
        started=details.start_time / 1000 if details.start_time else None,
        ended=details.end_time / 1000 if details.end_time else None,
        metadata=dict(details.metadata or {}),
    )


def _last(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason is given"])[-1]
