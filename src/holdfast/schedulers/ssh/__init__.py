"""SSH: hosts that one can log in to, as a cluster. On each host one replica runs as a local job there.

hosts ●    which hosts there are, and which replica runs where
render ●   from an app to what each host gets
parse ●    from what hosts say to what `describe` says
boot ●     the first lines that Python runs on a host: they find Holdfast there, or ask for it
packages   Holdfast and what it needs, for hosts that do not have it
client     OpenSSH's own client: one connection to each host, shared and kept for a while
remote     the program on a host: submits, describes, follows and ends local jobs
folders    what this machine remembers of its jobs
scheduler  what users call

A job goes on when this machine is switched off: on every host its supervisor is a process of that host alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.ssh.scheduler import SshScheduler


def create_scheduler(session_name: str, **kwargs: object) -> SshScheduler:
    """Make the SSH scheduler for one session."""
    from holdfast.schedulers.ssh.scheduler import SshScheduler

    del kwargs  # whatever the environment holds for other schedulers
    return SshScheduler(session_name)
