"""TorchX's classes for Ray, AWS Batch, SageMaker, Google Batch and LSF, around our schedulers.

TorchX has dropped these schedulers since; the classes, factories and names of states that programs import are here.
"""

from __future__ import annotations

from typing import Any

from holdfast.schedulers.cloud import clients
from holdfast.schedulers.cloud.scheduler import CloudScheduler
from holdfast.schedulers.ray import scheduler as ray


class AWSBatchScheduler(CloudScheduler):
    """Our scheduler for AWS Batch, by TorchX's name and arguments."""

    def __init__(
        self, session_name: str, client: Any = None, log_client: Any = None, docker_client: Any = None
    ) -> None:
        del docker_client  # no image is built
        made = {"batch": client, "logs": log_client}
        super().__init__("aws_batch", session_name, clients.AwsBatch(made.__getitem__ if client is not None else None))


class AWSSageMakerScheduler(CloudScheduler):
    """Our scheduler for SageMaker, by TorchX's name and arguments."""

    def __init__(self, session_name: str, client: Any = None, docker_client: Any = None) -> None:
        del docker_client  # no image is built
        service = clients.SageMaker(None if client is None else lambda _: client)
        super().__init__("aws_sagemaker", session_name, service)


class GCPBatchScheduler(CloudScheduler):
    """Our scheduler for Google Batch, by TorchX's name and arguments."""

    def __init__(self, session_name: str, client: Any = None) -> None:
        del client  # TorchX's was one of another library
        super().__init__("gcp_batch", session_name, clients.GoogleBatch())


class LsfScheduler(CloudScheduler):
    """Our scheduler for LSF, by TorchX's name and arguments."""

    def __init__(self, session_name: str) -> None:
        super().__init__("lsf", session_name, clients.Lsf())


class RayScheduler(ray.RayScheduler):
    """Our scheduler for Ray, by TorchX's name and arguments."""

    def __init__(self, session_name: str, ray_client: Any = None, tmp_dir_prefix: str | None = None) -> None:
        del ray_client, tmp_dir_prefix
        super().__init__(session_name)


def create_aws_batch(
    session_name: str, client: Any = None, log_client: Any = None, docker_client: Any = None, **kwargs: object
) -> AWSBatchScheduler:
    """Make the scheduler for AWS Batch for one session."""
    del kwargs
    return AWSBatchScheduler(session_name, client, log_client, docker_client)


def create_sagemaker(session_name: str, client: Any = None, docker_client: Any = None, **kwargs: object) -> Any:
    """Make the scheduler for SageMaker for one session."""
    del kwargs
    return AWSSageMakerScheduler(session_name, client, docker_client)


def create_gcp_batch(session_name: str, **kwargs: Any) -> GCPBatchScheduler:
    """Make the scheduler for Google Batch for one session."""
    return GCPBatchScheduler(session_name, kwargs.get("client"))


def create_lsf(session_name: str, **kwargs: object) -> LsfScheduler:
    """Make the scheduler for LSF for one session."""
    del kwargs
    return LsfScheduler(session_name)


def create_ray(session_name: str, **kwargs: Any) -> RayScheduler:
    """Make the scheduler for Ray for one session."""
    del kwargs
    return RayScheduler(session_name)


def has_ray() -> bool:
    """Whether Ray is installed here."""
    from importlib.util import find_spec

    return find_spec("ray") is not None
