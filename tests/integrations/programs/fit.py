"""Lightning with validation, a schedule, batch normalisation, accumulation and a last batch that is not full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from common import OPTIONS, maybe_die, points, report
from torch import nn
from torch.utils.data import DataLoader

from holdfast.integrations.lightning import HoldfastStrategy


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
        self.seen: list[int] = []

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        maybe_die("before", self.global_step)
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.seen.append(self.global_step)
        maybe_die("after", self.global_step)

    def validation_step(self, batch: Any, batch_index: int) -> None:
        maybe_die("validate", self.global_step)
        inputs, labels = batch
        self.log("right", (self.layers(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)
net = Net()
checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(
    OPTIONS["out"] + "/model", every_n_train_steps=4, save_top_k=-1
)
trainer = lightning.Trainer(
    strategy=HoldfastStrategy(min_workers=OPTIONS.get("min_workers", 1)),
    devices=1,
    max_epochs=3,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[checkpoints],
    enable_model_summary=False,
    enable_progress_bar=False,
    logger=False,
    num_sanity_val_steps=1,
)
trainer.fit(
    net,
    DataLoader(points(46, seed=1), batch_size=2, shuffle=True),
    DataLoader(points(32, seed=2), batch_size=16),
    ckpt_path=OPTIONS.get("resume"),
)
report(
    trainer.global_rank,
    net,
    steps=trainer.global_step,
    epoch=trainer.current_epoch,
    right=float(trainer.callback_metrics["right"]),
    rate=trainer.optimizers[0].param_groups[0]["lr"],
    seen=net.seen,
    saved=sorted(path.name for path in Path(OPTIONS["out"], "model").glob("*.ckpt")),
)
