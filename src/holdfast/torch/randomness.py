"""The random numbers of a step, which depend only on a seed, the step and the part of it that is done.

A step that is done again draws the same numbers, also when another worker does it in place of a dead one.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from typing import Any

import torch


def seed_step(seed: int, step: int, part: int) -> None:
    """Seed every generator that training code uses: Python's, numpy's if it is loaded, torch's on all devices."""
    digest = hashlib.blake2b(struct.pack("<Qqq", seed & ((1 << 64) - 1), step, part), digest_size=8).digest()
    value = int.from_bytes(digest, "little") >> 1
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)
    # `torch.manual_seed` walks every kind of device and notes a stack trace, which costs more than all of this.
    torch.default_generator.manual_seed(value)
    if cuda_in_use():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(value)


def cuda_in_use() -> bool:
    """Return whether this process has used a GPU; asking does not use one."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized())
