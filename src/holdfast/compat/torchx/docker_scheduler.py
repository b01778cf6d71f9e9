"""TorchX's `docker_scheduler`: its names, around our scheduler of containers."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.compat.torchx.docker_workspace import DockerWorkspaceMixin
from holdfast.schedulers.containers.scheduler import ContainerScheduler
from holdfast.specs import AppState

#: Docker's words for the state of a container.
CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}
LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_ID = "torchx.pytorch.org/app-id"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
NETWORK = "torchx"
#: How long Docker may take to answer.
_ANSWER_S = 30.0


class DockerOpts(TypedDict, total=False):
    """The run options of the Docker scheduler that TorchX has too."""

    copy_env: list[str] | None
    env: dict[str, str] | None
    privileged: bool | None


@dataclass
class DockerContainer:
    """TorchX's request for one container: arguments of Docker's Python client."""

    image: str
    command: list[str]
    kwargs: dict[str, object]


@dataclass
class DockerJob:
    """TorchX's request: the containers of an app."""

    app_id: str
    containers: list[DockerContainer]


class DockerScheduler(ContainerScheduler, DockerWorkspaceMixin):
    """Our scheduler of containers, by TorchX's name and arguments."""

    def __init__(self, session_name: str, docker_client: Any = None) -> None:
        super().__init__("docker", session_name)
        del docker_client  # ours calls the command `docker`


def create_scheduler(session_name: str, **kwargs: Any) -> DockerScheduler:
    """Make the Docker scheduler for one session."""
    return DockerScheduler(session_name, docker_client=kwargs.get("docker_client"))


def has_docker() -> bool:
    """Whether Docker is installed here and its daemon answers."""
    try:
        done = subprocess.run(["docker", "version"], capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def ensure_network(client: Any = None) -> None:
    """Make the network `torchx`, unless it is there; our own jobs have networks of their own."""
    del client
    done = subprocess.run(
        ["docker", "network", "create", "--driver=bridge", NETWORK],
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=False,
    )
    if done.returncode and "already exists" not in done.stderr:
        raise RuntimeError(f"the network {NETWORK} cannot be made: {done.stderr.strip()}")


def _to_str(data: str | bytes) -> str:
    """Return text; bytes are decoded as UTF-8."""
    return data if isinstance(data, str) else data.decode("utf-8")


__all__ = [
    "CONTAINER_STATE",
    "LABEL_APP_ID",
    "LABEL_REPLICA_ID",
    "LABEL_ROLE_NAME",
    "LABEL_VERSION",
    "NETWORK",
    "DockerContainer",
    "DockerJob",
    "DockerOpts",
    "DockerScheduler",
    "DockerWorkspaceMixin",
    "_to_str",
    "create_scheduler",
    "ensure_network",
    "has_docker",
]
