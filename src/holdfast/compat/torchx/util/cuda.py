"""GPUs, as torch sees them."""

from __future__ import annotations


def has_cuda_devices() -> bool:
    """Whether torch is made for CUDA and this machine has a GPU for it."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.device_count() > 0)
