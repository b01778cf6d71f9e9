"""Which module of ours stands behind which name of the first torchelastic, 0.1 and 0.2. Data only. Pure.

`torchelastic` itself is a small package of ours that is installed with Holdfast.
"""

from __future__ import annotations

from holdfast.compat.names import Table, torch_elastic, view

_THEIRS = "torch.distributed.elastic"
#: What went on under another name when torchelastic became a part of torch.
_MOVED = ("agent", "rendezvous", "metrics", "events", "timer", "multiprocessing", "utils")

MODULES: Table = {
    # -- 0.1: training inside the process
    "torchelastic.p2p": view("holdfast.p2p"),
    "torchelastic.p2p.coordinator_p2p": "holdfast.p2p",
    "torchelastic.checkpoint": view("holdfast.checkpoint"),
    "torchelastic.checkpoint.api": "holdfast.checkpoint.classic",
    "torchelastic.checkpoint.file_system_checkpoint": "holdfast.checkpoint.classic",
    "torchelastic.coordinator": view(
        "holdfast.train.coordinator",
        NonRetryableException="holdfast.compat.errors:NonRetryableException",
        StopException="holdfast.compat.errors:StopException",
    ),
    "torchelastic.distributed": view("holdfast.compat.collectives"),
    "torchelastic.distributed.collectives": "holdfast.compat.collectives",
    "torchelastic.fault_injection": "holdfast.chaos.dice",
    "torchelastic.state": "holdfast.train.state",
    "torchelastic.train_loop": "holdfast.train.loop",
    "torchelastic.worker_stats": "holdfast.train.coordinator",
    # -- 0.2: the agent, and what torch has had since
    "torchelastic.distributed.launch": "holdfast.compat.elastic.run",
    **{
        name.replace(_THEIRS, "torchelastic", 1): behind
        for name, behind in torch_elastic.MODULES.items()
        if name.startswith(tuple(f"{_THEIRS}.{room}" for room in _MOVED))
    },
}
