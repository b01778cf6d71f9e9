"""AWS Batch, SageMaker, Google Batch and LSF: small schedulers over the job service of each.

common ●     what they share: the command of a replica that learns its number when it runs
aws_batch ●  from an app to the requests of AWS Batch, and from its answers to a status
sagemaker ●  the same for training jobs of SageMaker
google ●     the same for Google Batch
lsf ●        the same for the commands of LSF
clients      one thin client for each service
scheduler    what users call, the same for all

The service keeps the job and its logs; nothing of a job is kept here. Requests are checked against the models of the
services in tests; none of these was run against the real service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.cloud.scheduler import CloudScheduler


def create_aws_batch(session_name: str, **kwargs: object) -> CloudScheduler:
    """Make the scheduler for AWS Batch, for one session."""
    from holdfast.schedulers.cloud import clients
    from holdfast.schedulers.cloud.scheduler import CloudScheduler

    del kwargs  # what the environment holds for other schedulers
    return CloudScheduler("aws_batch", session_name, clients.AwsBatch())


def create_sagemaker(session_name: str, **kwargs: object) -> CloudScheduler:
    """Make the scheduler for training jobs of SageMaker, for one session."""
    from holdfast.schedulers.cloud import clients
    from holdfast.schedulers.cloud.scheduler import CloudScheduler

    del kwargs  # what the environment holds for other schedulers
    return CloudScheduler("aws_sagemaker", session_name, clients.SageMaker())


def create_google_batch(session_name: str, **kwargs: object) -> CloudScheduler:
    """Make the scheduler for Google Batch, for one session."""
    from holdfast.schedulers.cloud import clients
    from holdfast.schedulers.cloud.scheduler import CloudScheduler

    del kwargs  # what the environment holds for other schedulers
    return CloudScheduler("gcp_batch", session_name, clients.GoogleBatch())


def create_lsf(session_name: str, **kwargs: object) -> CloudScheduler:
    """Make the scheduler for LSF, for one session."""
    from holdfast.schedulers.cloud import clients
    from holdfast.schedulers.cloud.scheduler import CloudScheduler

    del kwargs  # what the environment holds for other schedulers
    return CloudScheduler("lsf", session_name, clients.Lsf())
