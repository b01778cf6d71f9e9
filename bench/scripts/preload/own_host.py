"""Has each process that is forked from this one tell NCCL that it is on a host of its own: several can share a GPU.

For standbys: they have made a communicator, and so told NCCL their host, before a script runs that could say so.
"""

import os


def _move() -> None:
    os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"


os.register_at_fork(after_in_child=_move)
