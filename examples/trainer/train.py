"""A small Llama with random weights, trained by Hugging Face's Trainer, whose workers outlive each other.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/trainer/train.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from holdfast.integrations.accelerate import survive

CONTEXT, SYMBOLS = 32, 128


class Text(Dataset[dict[str, torch.Tensor]]):
    """Pieces of this very file."""

    def __init__(self) -> None:
        text = torch.tensor([min(byte, SYMBOLS - 1) for byte in Path(__file__).read_bytes()])
        self._pieces = text.unfold(0, CONTEXT, 7)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self._pieces[index].clone()
        return {"input_ids": piece, "labels": piece}


class Killer(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Lets one worker die in a step, once."""

    def __init__(self, at: int | None) -> None:
        self._at = at

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if state.global_step == self._at and first_life and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4, help="pieces of text of one worker in one pass")
    parser.add_argument("--min-workers", type=int, help="fewer than this wait for replacements")
    parser.add_argument("--kill-at", type=int, help="let the second worker die in this step, once")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SYMBOLS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            attention_dropout=0.1,
            max_position_embeddings=CONTEXT,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            gradient_accumulation_steps=2,
            max_steps=options.steps,
            learning_rate=3e-3,
            logging_steps=20,
            save_strategy="no",
            disable_tqdm=True,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=[Killer(options.kill_at)])
        survive(trainer, min_workers=options.min_workers)  # this line is all that Holdfast needs
        result = trainer.train()
    if trainer.is_world_process_zero():
        checksum = hashlib.sha256()
        for parameter in model.parameters():
            checksum.update(parameter.detach().cpu().numpy().tobytes())
        print(f"done: {result.global_step} steps, loss {result.training_loss:.4f}, model {checksum.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
