"""Which of our modules is behind each name of the first torchelastic, 0.1 and 0.2. Data only. Pure.

`torchelastic` itself is a small package of ours that is installed with Holdfast.
"""

from __future__ import annotations

from holdfast.compat.names import Table, torch_elastic, view

_ADAPTERS = "holdfast.compat.torchelastic"
_THEIRS = "torch.distributed.elastic"
#: What went on under another name when torchelastic became a part of torch.
_MOVED = ("agent", "rendezvous", "metrics", "events", "timer", "multiprocessing", "utils")

MODULES: Table = {
    # -- 0.1: training inside the process
    "torchelastic.p2p": view(f"{_ADAPTERS}.p2p"),
    "torchelastic.p2p.coordinator_p2p": f"{_ADAPTERS}.p2p",
    "torchelastic.checkpoint": view(f"{_ADAPTERS}.checkpoint", "holdfast.checkpoint"),
    "torchelastic.checkpoint.api": f"{_ADAPTERS}.checkpoint",
    "torchelastic.checkpoint.file_system_checkpoint": f"{_ADAPTERS}.checkpoint",
    "torchelastic.coordinator": view(
        f"{_ADAPTERS}.coordinator",
        NonRetryableException="holdfast.compat.errors:NonRetryableException",
        StopException="holdfast.compat.errors:StopException",
    ),
    "torchelastic.distributed": view(f"{_ADAPTERS}.collectives"),
    "torchelastic.distributed.collectives": f"{_ADAPTERS}.collectives",
    "torchelastic.fault_injection": "holdfast.chaos.dice",
    "torchelastic.state": "holdfast.train.state",
    "torchelastic.train_loop": f"{_ADAPTERS}.loop",
    "torchelastic.worker_stats": f"{_ADAPTERS}.coordinator",
    # -- 0.2: the agent, and what torch has had since
    "torchelastic.distributed.launch": "holdfast.compat.elastic.run",
    **{
        name.replace(_THEIRS, "torchelastic", 1): behind
        for name, behind in torch_elastic.MODULES.items()
        if name.startswith(tuple(f"{_THEIRS}.{room}" for room in _MOVED))
    },
}
