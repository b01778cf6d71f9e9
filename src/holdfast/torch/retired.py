"""NCCL's groups of rounds that are over: hidden from torch at once, aborted in the background.

NCCL's abort takes half a second, and a new communicator a few milliseconds. The one need not wait for
the other: a thread begins to abort the groups when the round breaks, which ends every wait for them, torch
forgets them when the round is closed, and the next round forms its own meanwhile. Memory that a collective may still
write to is kept until the abort is done.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from typing import Any

import torch
from torch._C._distributed_c10d import _unregister_all_process_groups
from torch.distributed import distributed_c10d as c10d

from holdfast.facts import facts

#: How long a process that ends waits for its aborts: a kernel that still runs would delay the end of the process.
EXIT_WAIT_S = 10.0
#: How long an abort waits for the program to notice by itself that the round is over.
CLOSE_WAIT_S = 0.1
#: Where torch keeps its groups; versions of torch differ.
_REGISTRIES = (
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "pg_to_tag",
    "tags_to_pg",
    "pg_coalesce_state",
)

_threads: list[threading.Thread] = []


def abort_later(backends: list[Any], keep: list[Any], closed: threading.Event) -> None:
    """Abort what stands behind process groups, in a thread; what is in `keep` lives until that is done.

    It begins when the round is `closed`, or a moment from now: the program's own thread then waits for something that
    only the abort ends. Meanwhile that thread may still begin a collective. During the abort it could not: torch would
    hold it until the abort is done.
    """
    thread = threading.Thread(target=_abort, args=([backends, *keep], closed), name="holdfast abort", daemon=True)
    _threads[:] = [each for each in _threads if each.is_alive()]
    _threads.append(thread)
    thread.start()


def forget_groups() -> None:
    """Make torch forget all its groups, so that others can be made at once."""
    c10d._update_default_pg(None)
    for name in _REGISTRIES:
        with contextlib.suppress(AttributeError):
            getattr(c10d._world, name).clear()
    c10d._world.group_count = 0
    _unregister_all_process_groups()


def backends_of(groups: list[Any]) -> list[Any]:
    """Return the backends of these groups, each once."""
    found: list[Any] = []
    for group in groups:
        for device in ("cuda", "cpu"):
            with contextlib.suppress(RuntimeError):
                backend = group._get_backend(torch.device(device))
                if all(backend is not other for other in found):
                    found.append(backend)
    return found


def _abort(kept: list[Any], closed: threading.Event) -> None:
    closed.wait(CLOSE_WAIT_S)
    for backend in kept[0]:
        try:
            backend.abort()
        except Exception as error:  # noqa: BLE001 - whatever NCCL says of a group that is broken anyway
            facts.warn("abort_failed", f"a process group of a round that is over could not be aborted: {error!r}")
    kept.clear()


def _wait_aborts() -> None:
    deadline = time.monotonic() + EXIT_WAIT_S
    for thread in _threads:
        thread.join(max(deadline - time.monotonic(), 0.0))


atexit.register(_wait_aborts)
