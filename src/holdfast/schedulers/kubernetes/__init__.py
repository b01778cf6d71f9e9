"""Kubernetes: one pod for each replica, a headless service by which they find the first, and Secrets for what travels.

options ●    the run options
names ●      what objects and labels are called
render ●     from an app to the objects
pod ●        the pod of a replica
wrapped ●    the same pods as one JobSet or one Volcano job
show ●       objects as YAML, for a dry run
last_word ●  how a replica ended, in a pod's termination message
parse ●      from objects to what `describe` says
client       the official client, with its answers as plain data
node         the program in every pod: runs one replica and leaves its last word
code         what travels in Secrets
whereabouts  which cluster a job is on
logs         the lines of a replica, over all its pods
scheduler    what users call

Every replica is a Job of its own, of one pod. A Job starts a pod again that was deleted, evicted or lost with its node,
on every Kubernetes since 1.20, and ends when its pod has succeeded. A StatefulSet would restart replicas that have
finished, and the indexed Jobs that give one Job several identities came with 1.24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.kubernetes.scheduler import KubernetesScheduler


def create_scheduler(session_name: str, **kwargs: object) -> KubernetesScheduler:
    """Make the Kubernetes scheduler for one session."""
    from holdfast.schedulers.kubernetes.scheduler import KubernetesScheduler

    del kwargs  # whatever the environment holds for other schedulers
    return KubernetesScheduler(session_name)
