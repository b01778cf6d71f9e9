"""A loop for Accelerate as people write it, whose workers outlive each other.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/accelerate/train.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.accelerate import Accelerator  # instead of: from accelerate import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="points of one worker in one pass")
    parser.add_argument("--min-workers", type=int, default=1, help="fewer than this wait for replacements")
    parser.add_argument("--kill-at", type=int, help="let the second worker die in this step, once")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2, min_workers=options.min_workers
    )
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
    inputs = torch.randn(640, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long())
    loader = DataLoader(data, batch_size=options.batch, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    loss = torch.zeros(())
    for _ in range(options.epochs):
        for points, corners in loader:
            with accelerator.accumulate(model):
                if accelerator.run.progress == options.kill_at and first_life and os.environ["RANK"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = nn.functional.cross_entropy(model(points), corners)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    steps = accelerator.run.progress if accelerator.run is not None else 0
    if accelerator.is_main_process:
        checksum = hashlib.sha256()
        for parameter in model.parameters():
            checksum.update(parameter.detach().cpu().numpy().tobytes())
        print(f"done: {steps} steps, loss {loss.item():.4f}, model {checksum.hexdigest()[:16]}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
