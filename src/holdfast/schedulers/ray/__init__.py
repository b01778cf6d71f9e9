"""Ray: a job of the Ray Jobs API, with one agent on every node that it gets. Needs `pip install 'holdfast[ray]'`.

render ●   from an app to what is submitted, and to the bundles that are placed
parse ●    from what Ray says and the driver has written to what `describe` and logs say
client     the Ray Jobs API
driver     the program of the job: it places the replicas, decides with the local job machine, and carries the output
coordinator  where agents of ours meet, beside the driver
actor      what runs on a node for one replica
node       the local supervisor of that replica, in a process of its own
scheduler  what users call

Ray's nodes share no files, so all that is known of a job is in its own log, which the Ray Jobs API serves: each line of
a replica's output, and how the replicas are doing, as lines of JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.ray.scheduler import RayScheduler


def create_scheduler(session_name: str, **kwargs: object) -> RayScheduler:
    """Make the Ray scheduler for one session."""
    from holdfast.schedulers.ray.scheduler import RayScheduler

    del kwargs  # what the environment holds for other schedulers
    return RayScheduler(session_name)
