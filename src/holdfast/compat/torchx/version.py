"""Which TorchX this answers for."""

from __future__ import annotations

from holdfast.compat.names.torchx import TORCHX_VERSION
from holdfast.compat.torchx.util.entrypoints import load

__all__ = ["TORCHX_IMAGE", "__version__", "load"]

__version__ = TORCHX_VERSION


def _get_torchx_image(version: str) -> str:
    return f"ghcr.io/pytorch/torchx:{version}"


#: The image that TorchX's components run in; ours leave that to the scheduler.
TORCHX_IMAGE: str = load("torchx.version", "get_torchx_image", default=_get_torchx_image)(__version__)
