"""What to preload is told from a script's own imports, or not at all."""

import pytest

from holdfast.workers import guess


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch", ("torch",)),
        ("import numpy as np\nfrom torch.nn import functional as F", ("numpy", "torch")),
        ("'''Doc.'''\nfrom __future__ import annotations\nimport os, torch.nn", ("torch",)),
        ("import torch\nimport holdfast.torch", ("torch", "holdfast")),
        ("import argparse\nimport json", ()),
        ("def main():\n    import torch", ()),
        ("if True:\n    import torch", ()),
        ("from .torch import x", ()),
        ("def f():\n    pass\nX = 3\nimport torch", ("torch",)),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", ()),
        ("import os\nos.environ.setdefault('NCCL_DEBUG', 'INFO')\nimport torch", ("torch",)),
        ("import os\nos.environ[name] = '4'\nimport torch", ()),
        ("import numpy, os\nos.putenv('LD_PRELOAD', 'x')\nimport torch", ("numpy",)),
        ("import sys\nsys.path.insert(0, 'vendored')\nimport torch", ()),
        ("import torch\nthis is no python", ()),
        ("", ()),
    ],
)
def test_only_certain_and_safe_imports_count(script, text, modules):
    assert guess(script(text)) == modules


def test_a_neighbour_of_the_same_name_is_not_the_library(script, tmp_path):
    script("X = 1", "numpy.py")
    (tmp_path / "torch").mkdir()

    assert guess(script("import numpy, torch, scipy")) == ("scipy",)


def test_what_cannot_be_read_gives_nothing(tmp_path):
    assert guess(tmp_path / "missing.py") == ()
    assert guess(tmp_path) == ()
    (tmp_path / "binary.py").write_bytes(b"\xff\x00\xfe")
    assert guess(tmp_path / "binary.py") == ()
