"""From what an engine prints to what became of a container, and why a command failed. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.schedulers.containers.render import ContainerRequest
from holdfast.schedulers.replies import DescribeAppResponse

SIGNALS = range(1, 65)
SIGNAL_BASE = 128

#: What engines say when they do not answer, when an image is not there, and when a name is not known.
_SILENT = re.compile(
    r"cannot connect to the docker daemon|is the docker daemon running|"
    r"unable to connect to podman|cannot connect to podman|permission denied while trying to connect|"
    r"error during connect|connect: no such file",
    re.IGNORECASE,
)
_NO_IMAGE = re.compile(
    r"no such image|pull access denied|manifest unknown|not found: manifest|unable to find image|image not known|"
    r"repository does not exist|requested access to the resource is denied|short-name|initializing source|"
    r"failed to resolve reference|name unknown",
    re.IGNORECASE,
)
_WRONG_FLAG = re.compile(r"unknown (?:shorthand )?flag|invalid argument|invalid reference", re.IGNORECASE)
_GONE = re.compile(
    r"no such (?:container|network|object|image)|no container with|network not found|unable to find network|"
    r"network \S+ not found|image not known",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Outcome:
    """How a container is, or how it ended; `exit_code` is negative for a signal."""

    running: bool
    exit_code: int
    out_of_memory: bool = False
    error: str = ""


def parse_state(text: str) -> Outcome:
    """Read what `inspect --format '{{json .State}}'` prints."""
    state = json.loads(text)
    code = int(state.get("ExitCode") or 0)
    running = bool(state.get("Running") or state.get("Paused"))
    error = str(state.get("Error") or "")
    if code - SIGNAL_BASE in SIGNALS and not error:
        code = SIGNAL_BASE - code
    return Outcome(running, code, bool(state.get("OOMKilled")), error)


def trouble(engine: str, what: str, said: str) -> HoldfastError:
    """Say why a command of the engine failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not re.match(r"See '|Usage:|Run '", line)]
    telling = [line for line in lines if re.match(r"(?i)(?:docker: )?error", line)]
    last = (telling or lines or ["it says no more"])[-1]
    if _SILENT.search(said):
        remedy = "start it, or name another with DOCKER_HOST" if engine == "docker" else "see `podman info`"
        return UnavailableError(f"{engine} does not answer: {last}; {remedy}")
    if _NO_IMAGE.search(said):
        return UsageError(f"{what}: {last}; pull the image, build it here, or name another with --image")
    if _WRONG_FLAG.search(said):
        return UsageError(f"{what}: {last}")
    return UnavailableError(f"{what}: {last}")


def is_gone(said: str) -> bool:
    """Whether a command failed because what it names is not there."""
    return _GONE.search(said) is not None


def with_names(request: ContainerRequest, found: DescribeAppResponse) -> DescribeAppResponse:
    """Say of each replica in which container it runs, in place of on which machine."""
    names = {(box.role, box.number): box.name for box in request.boxes}
    roles = [
        replace(role, replicas=[replace(each, hostname=names.get((each.role, each.id), "")) for each in role.replicas])
        for role in found.roles_statuses
    ]
    return replace(found, roles_statuses=roles)


def user_ids(user: str, passwd: str) -> tuple[int, int]:
    """Return the numbers of a container's user, as `USER` of its image or `--user` names it, with its password file."""
    name, _, group = user.partition(":")
    if not name:
        return 0, 0
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]):
            return int(fields[2]), int(group) if group.isdecimal() else int(fields[3])
    if name.isdecimal():
        return int(name), int(group) if group.isdecimal() else 0
    raise UsageError(f"the user '{name}' is not in the image's /etc/passwd: name a number with -cfg user=UID:GID")
