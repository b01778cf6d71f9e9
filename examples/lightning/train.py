"""A small network trained by Lightning, whose workers outlive each other.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/lightning/train.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.lightning import HoldfastStrategy


class Net(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """Learns which of four corners a point is in."""

    def __init__(self, kill_at: int | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self._kill_at = kill_at

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if self.global_step == self._kill_at and first_life and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_index: int) -> None:
        inputs, labels = batch
        self.log("right", (self.layers(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def points(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="points of one worker in one step")
    parser.add_argument("--min-workers", type=int, default=1, help="fewer than this wait for replacements")
    parser.add_argument("--kill-at", type=int, help="let the second worker die in this step, once")
    options = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    net = Net(options.kill_at)
    trainer = lightning.Trainer(
        strategy=HoldfastStrategy(min_workers=options.min_workers),  # this line is all that Holdfast needs
        devices=1,
        max_epochs=options.epochs,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(
        net,
        DataLoader(points(640, seed=1), batch_size=options.batch, shuffle=True),
        DataLoader(points(128, seed=2), batch_size=64),
    )
    if trainer.is_global_zero:
        checksum = hashlib.sha256()
        for parameter in net.parameters():
            checksum.update(parameter.detach().cpu().numpy().tobytes())
        right = float(trainer.callback_metrics["right"])
        print(f"done: {trainer.global_step} steps, {right:.0%} right, model {checksum.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
