"""Hugging Face's Trainer with evaluation, checkpoints, early stopping and a last batch that is not full."""

from __future__ import annotations

from typing import Any

import torch
from common import OPTIONS, maybe_die, report
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from holdfast.integrations.accelerate import survive


class Text(Dataset[dict[str, torch.Tensor]]):
    """Pieces of different lengths, so that tokens and samples are not the same."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pieces = torch.randint(0, 32, (count, 12), generator=generator)
        self._lengths = torch.randint(4, 12, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self._pieces[index].clone()
        labels[self._lengths[index] :] = -100
        return {"input_ids": self._pieces[index], "labels": labels}


class Deaths(TrainerCallback):
    """Lets a worker die at a place of a step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        maybe_die("before", state.global_step)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        maybe_die("after", state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        maybe_die("evaluate", state.global_step)


torch.set_num_threads(1)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=0.2,
    )
)
arguments = TrainingArguments(
    output_dir=OPTIONS["out"] + "/model",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-2,
    logging_steps=2,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="steps",
    save_steps=3,
    load_best_model_at_end=True,
    disable_tqdm=True,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=Text(45, seed=1),
    eval_dataset=Text(8, seed=2),
    callbacks=[Deaths(), EarlyStoppingCallback(50)],
)
survive(trainer, min_workers=OPTIONS.get("min_workers"))
result = trainer.train(resume_from_checkpoint=OPTIONS.get("resume"))
history = [
    {key: value for key, value in entry.items() if "runtime" not in key and "per_second" not in key}
    for entry in trainer.state.log_history
]
report(
    trainer.args.process_index,
    model,
    steps=result.global_step,
    loss=result.training_loss,
    history=history,
    is_zero=trainer.is_world_process_zero(),
    flos=trainer.state.total_flos,
)
