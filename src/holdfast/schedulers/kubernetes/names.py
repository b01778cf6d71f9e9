"""What objects and labels are called. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.schedulers.local.record import LocalRequest
from holdfast.specs.app import Role

#: Labels by which objects are found again.
MANAGED_LABEL, MANAGER = "app.kubernetes.io/managed-by", "holdfast"
JOB_LABEL, SESSION_LABEL, PART_LABEL = "holdfast/job", "holdfast/session", "holdfast/part"
ROLE_LABEL, REPLICA_LABEL = "holdfast/role", "holdfast/replica"
#: Parts of a job: what is remembered of it, the code that was shipped, and its replicas.
RECORD, CODE, REPLICA = "record", "code", "replica"
#: On the record: when the job was cancelled.
CANCELLED_ANNOTATION = "holdfast/cancelled"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: The container of the app in its pod.
CONTAINER = "main"

#: A name may have 63 characters. So much is left for the app and the role, beside letters, numbers and separators.
APP_CHARS_MAX, ROLE_CHARS_MAX, LABEL_CHARS_MAX = 30, 14, 63


def make_name(app: str, letters: str) -> str:
    """Make a job's name: one that a service may have, with letters of its own at the end."""
    readable = _plain(app)[:APP_CHARS_MAX].strip("-")
    if not readable[:1].isalpha():
        readable = f"j-{readable}".rstrip("-")[:APP_CHARS_MAX]
    return f"{readable}-{letters}"


def role_names(roles: Sequence[Role]) -> dict[str, str]:
    """Return what each role is called in names of objects; no two are called the same."""
    found: dict[str, str] = {}
    for number, role in enumerate(roles):
        name = _plain(role.name)[:ROLE_CHARS_MAX].strip("-") or "role"
        if name in found.values():
            name = f"{name[: ROLE_CHARS_MAX - len(str(number)) - 1].rstrip('-')}-{number}"
        found[role.name] = name
    return found


def replica_name(job: str, role: str, number: int) -> str:
    """Name the Job of a replica, and its host."""
    return f"{job}-{role}-{number}"


def label_value(text: str) -> str:
    """Return a text as the value of a label."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:LABEL_CHARS_MAX]
    return plain.strip("-_.") or "none"


def labels_of(job: LocalRequest, name: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {
        MANAGED_LABEL: MANAGER,
        "app.kubernetes.io/name": label_value(job.name),
        "app.kubernetes.io/instance": name,
        JOB_LABEL: name,
        SESSION_LABEL: label_value(job.session),
    }


def make_app_id(namespace: str, name: str) -> str:
    """Make a job's id, which leads to it in every shell."""
    return f"{namespace}:{name}"


def split_app_id(app_id: str, namespace: str) -> tuple[str, str]:
    """Return the namespace and the name of a job; an id without a namespace is of this one."""
    head, colon, name = app_id.rpartition(":")
    return (head, name) if colon else (namespace, app_id)


def is_name(text: str) -> bool:
    """Whether an object can have this name at all."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is not None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
