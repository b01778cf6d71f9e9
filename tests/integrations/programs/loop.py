"""A loop for Accelerate with clipping, a schedule, accumulation and a last batch that is not full."""

from __future__ import annotations

import torch
from common import OPTIONS, maybe_die, points, report
from torch import nn
from torch.utils.data import DataLoader

from holdfast.integrations.accelerate import Accelerator

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, min_workers=OPTIONS.get("min_workers", 1))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=18)
model, optimizer, loader, held_out, schedule = accelerator.prepare(
    model,
    optimizer,
    DataLoader(points(46, seed=1), batch_size=2, shuffle=True),
    DataLoader(points(32, seed=2), batch_size=16),
    schedule,
)
right = 0.0
for _ in range(3):
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            assert accelerator.run is not None
            maybe_die("before", accelerator.run.progress)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            maybe_die("after", accelerator.run.progress)
            schedule.step()
    model.eval()
    with torch.no_grad():
        hits = [(model(inputs).argmax(1) == labels).float() for inputs, labels in held_out]
    right = torch.cat(accelerator.gather_for_metrics(hits)).mean().item()
assert accelerator.run is not None
report(
    accelerator.process_index,
    accelerator.unwrap_model(model),
    steps=accelerator.run.progress,
    right=right,
    rate=optimizer.param_groups[0]["lr"],
)
accelerator.end_training()
