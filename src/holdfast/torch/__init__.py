"""Training with torch; torch is imported when a name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.torch.data import CyclingIterator as CyclingIterator
    from holdfast.torch.data import ElasticDistributedSampler as ElasticDistributedSampler
    from holdfast.torch.data import StepSampler as StepSampler
    from holdfast.torch.ddp import ElasticDDP as ElasticDDP
    from holdfast.torch.groups import RoundGroups as RoundGroups
    from holdfast.torch.replicas import Replica as Replica
    from holdfast.torch.replicas import replica as replica
    from holdfast.torch.run import TorchRun as TorchRun
    from holdfast.torch.run import TorchStep as TorchStep
    from holdfast.torch.run import elastic as elastic
    from holdfast.torch.state import TorchState as TorchState
    from holdfast.torch.store import TorchStore as TorchStore
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        data="CyclingIterator ElasticDistributedSampler StepSampler",
        ddp="ElasticDDP",
        groups="RoundGroups",
        replicas="Replica replica",
        run="TorchRun TorchStep elastic",
        state="TorchState",
        store="TorchStore",
    )
