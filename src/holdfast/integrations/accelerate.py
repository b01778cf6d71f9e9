"""Hugging Face's Trainer and Accelerate in process; import it before `TrainingArguments` are made.

    from holdfast.integrations.accelerate import survive

    trainer = Trainer(model, TrainingArguments(...), train_dataset=data)
    survive(trainer)
    trainer.train()
"""

from __future__ import annotations

from holdfast.integrations.apart import stay_apart
from holdfast.integrations.trainer import survive as survive

stay_apart()
