"""Which module of ours stands behind which name of others. Data only. Pure.

A name that is not listed is looked for below its nearest listed ancestor: `torchx.components.dist` is
`holdfast.components.dist`. A root has no module of ours behind it; it is made, with these attributes.
"""

from __future__ import annotations

#: The version whose public names are kept.
TORCHX_VERSION = "0.7.0"

ROOTS: dict[str, dict[str, str]] = {
    "torchx": {"__version__": TORCHX_VERSION, "__doc__": "TorchX's names, answered by Holdfast."},
}

MODULES: dict[str, str] = {
    "torchx.components": "holdfast.components",
    "torchx.runner": "holdfast.runner",
    "torchx.schedulers": "holdfast.schedulers",
    "torchx.specs": "holdfast.specs",
    "torchx.specs.api": "holdfast.specs",
    "torchx.specs.finder": "holdfast.components.finder",
    "torchx.workspace": "holdfast.workspace",
}
