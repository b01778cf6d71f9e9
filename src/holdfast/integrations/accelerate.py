"""Hugging Face's Trainer and Accelerate in process; import it before `TrainingArguments` or an `Accelerator` are made.

    from holdfast.integrations.accelerate import survive

    trainer = Trainer(model, TrainingArguments(...), train_dataset=data)
    survive(trainer)
    trainer.train()

For a loop of your own, `from holdfast.integrations.accelerate import Accelerator` takes the place of Accelerate's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.integrations.accelerator import Accelerator as Accelerator
from holdfast.integrations.apart import stay_apart

if TYPE_CHECKING:
    from holdfast.integrations.trainer import survive as survive

stay_apart()


def __getattr__(name: str) -> Any:
    """Import `survive` when it is first used: it needs transformers, a loop with Accelerate does not."""
    if name != "survive":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.integrations.trainer import survive

    return survive
