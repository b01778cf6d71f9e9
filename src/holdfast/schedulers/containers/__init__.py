"""Docker and Podman: one implementation with two names. Every replica is a container of its own.

options ●  the run options
render ●   from an app to the containers, and to the commands that make them
parse ●    from what the engine prints to what became of a container
client     the engine's own command, `docker` or `podman`
build      images with a workspace in them
keeper     makes, runs and removes one container
replica    the program of a replica: it starts a keeper, and ends as the container ends
scheduler  what users call

A job is a local job whose replicas are the programs of `replica`. So retries, logs with times, error files, the record
and its end are those of the local scheduler, and an engine only makes, runs and removes containers. The labels of a
container say which job, role and replica it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.containers.scheduler import ContainerScheduler


def create_docker(session_name: str, **kwargs: object) -> ContainerScheduler:
    """Make the scheduler for Docker, for one session."""
    return _create("docker", session_name, **kwargs)


def create_podman(session_name: str, **kwargs: object) -> ContainerScheduler:
    """Make the scheduler for Podman, for one session."""
    return _create("podman", session_name, **kwargs)


def _create(engine: str, session_name: str, **kwargs: object) -> ContainerScheduler:
    from holdfast.schedulers.containers.scheduler import ContainerScheduler

    del kwargs  # what the environment holds for other schedulers
    return ContainerScheduler(engine, session_name)
