"""What to preload is told from a script's own imports, or not at all."""

from pathlib import Path

import pytest

import holdfast
from holdfast.workers import Template, guess
from holdfast.workers.preload import program_sets
from holdfast.workers.variables import (
    is_cuda_variable,
    is_import_variable,
    is_late_variable,
    is_lazy_variable,
    is_nccl_variable,
)

REPOSITORY = Path(__file__).parents[2]


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


#: Each sets something that imports see before it imports torch, in a way of its own.
PREPARES = {
    "a variable": "import os; os.environ['OMP_NUM_THREADS'] = '1'",
    "a variable that nothing is known of": "import os; os.environ['WHATEVER'] = '1'",
    "a variable by another name of os": "import os as o; o.environ['OMP_NUM_THREADS'] = '1'",
    "a variable by another name of environ": "from os import environ as e; e['TORCH_LOGS'] = '1'",
    "an alias": "import os; e = os.environ; e['TORCH_LOGS'] = '1'",
    "with a star": "from os import *; environ['TORCH_LOGS'] = '1'",
    "several": "import os; os.environ.update(TORCH_LOGS='x')",
    "several in a dictionary": "import os; os.environ.update({'NCCL_DEBUG': 'x', 'NPY_PROMOTION_STATE': 'weak'})",
    "several in a variable": "import os; v = {}; os.environ.update(v)",
    "added": "import os; os.environ |= {'KINETO_LOG_LEVEL': '5'}",
    "removed": "import os; del os.environ['SCIPY_ARRAY_API']",
    "popped": "import os; os.environ.pop('PYTORCH_JIT', None)",
    "in a loop": "import os\nfor key in ('A', 'B'):\n    os.environ[key] = '1'",
    "in a condition": "import os\nif os.getpid():\n    os.environ['TRITON_DEBUG'] = '1'",
    "in a try": "import os\ntry:\n    os.environ['PANDAS_COPY_ON_WRITE'] = '1'\nexcept KeyError:\n    pass",
    "in a with": "import os\nwith open(os.devnull):\n    os.environ['TORCH_LOGS'] = '1'",
    "in a class": "import os\nclass A:\n    os.environ['TORCH_LOGS'] = '1'",
    "in a default": "import os\ndef f(x=os.environ.setdefault('TORCH_LOGS', '1')):\n    pass",
    "in a comprehension": "import os; [os.environ.setdefault(k, '1') for k in 'AB']",
    "in a lambda": "import os; list(map(lambda k: os.environ.setdefault(k, '1'), 'AB'))",
    "in a called function": "import os\ndef setup():\n    os.environ['OMP_NUM_THREADS'] = '1'\nsetup()",
    "in a decorator": "import os\ndef setup(f):\n    os.environ['OMP_NUM_THREADS'] = '1'\n@setup\ndef g(): pass",
    "in a method": "class A:\n    def f(self):\n        pass\nA().f()",
    "in a subclass": "class A:\n    def __init_subclass__(cls):\n        pass\nclass B(A):\n    pass",
    "in a metaclass": "class M(type):\n    pass\nclass B(metaclass=M):\n    pass",
    "in a function that is passed on": "import functools\ndef setup(*_): pass\nfunctools.reduce(setup, [1, 2])",
    "in a function with another name": "def setup(): pass\ndo = setup\ndo()",
    "in a function out of a list": "def setup(): pass\nfor f in [setup]:\n    f()",
    "in a thread": "import threading\ndef setup(): pass\nthreading.Thread(target=setup).start()",
    "by load_dotenv": "from dotenv import load_dotenv\nload_dotenv()",
    "by a library": "import sklearn",
    "by a library that may be missing": "try:\n    import comet_ml\nexcept ImportError:\n    pass",
    "in C": "import ctypes; ctypes.CDLL(None).setenv(b'OMP_NUM_THREADS', b'1', 1)",
    "by getattr": "import os; getattr(os, 'environ')['OMP_NUM_THREADS'] = '1'",
    "by exec": "exec('import os')",
    "by a library's code": "import runpy; runpy.run_path('x.py')",
    "the folder": "import os; os.chdir('/')",
    "the path": "import sys; sys.path += ['x']",
    "the path by its name": "from sys import path; path.append('x')",
    "the modules": "import sys; sys.modules['numpy'] = None",
    "the arguments": "import sys; sys.argv = ['x']",
    "what is done at the end": "import atexit; atexit.register(print)",
    "with match": "import os\nmatch os.name:\n    case 'posix':\n        pass",
}


@pytest.mark.parametrize("text", PREPARES.values(), ids=PREPARES)
def test_what_may_change_an_import_ends_the_guess(script, text):
    assert guess(script(f"import numpy\n{text}\nimport torch")) == ("numpy",)


#: What scripts do before they import torch that cannot change it.
HARMLESS = {
    "constants": "BATCH, LR = 32, 1e-3\nNAMES = [n.upper() for n in ('a', 'b')]\nX: dict[str, int] = {}",
    "reading variables": "import os\nRANK = int(os.environ.get('RANK', 0))\nos.environ['HOME']\nos.getenv('OMP_X')",
    "asking for variables": "import os\nif 'RANK' in os.environ and 'X' not in os.environ:\n    DDP = True",
    "late variables": "import os\nos.environ['NCCL_DEBUG'] = 'INFO'\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
    "several late variables": "import os\nos.environ.update({'WANDB_MODE': 'offline'}, MASTER_PORT='29500')",
    "paths": "from pathlib import Path\nimport os.path as osp\nR = Path(__file__).resolve().parent\nosp.join('a', 'b')",
    "logging": "import logging\nlogging.basicConfig(level=logging.INFO)\nlog = logging.getLogger('x')\nlog.info('x')",
    "warnings": "import warnings\nwarnings.filterwarnings('ignore')",
    "arguments": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()",
    "seeds": "import random\nimport numpy as np\nrandom.seed(1)\nnp.random.seed(1)",
    "classes": "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    x: int = field(default=1)\n"
    "    @property\n    def y(self): return 1\n    @y.setter\n    def y(self, v): pass",
    "typing": "from typing import TYPE_CHECKING, TypeVar\nT = TypeVar('T')\nif TYPE_CHECKING:\n    import unknown",
    "optional modules": "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None",
    "other libraries": "import yaml\nfrom tqdm import tqdm\nimport matplotlib\nmatplotlib.use('Agg')",
    "prints": "print('starting', flush=True)",
    "assertions": "import sys\nassert sys.version_info >= (3, 8), 'too old'",
    "decorated functions": "import functools\n@functools.lru_cache\ndef f(x=3): return x",
    "regular expressions": "import re\nR = re.compile('x').pattern.strip()",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_cannot_change_an_import_does_not_end_the_guess(script, text):
    assert "torch" in guess(script(f"{text}\nimport torch\nif __name__ == '__main__':\n    main()"))


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.environ['OMP_NUM_THREADS'] = '1'",
        "import os\ndef setup():\n    os.environ['TORCH_LOGS'] = 'x'\nsetup()",
        "from dotenv import load_dotenv; load_dotenv()",
        "from .deeper import X",
        "import sys; sys.path.append('x')",
    ],
)
@pytest.mark.parametrize(
    "first", ["import config", "from config import X", "import pack.config as c", "from pack import config"]
)
def test_modules_of_the_program_are_read_too(script, tmp_path, first, text):
    (tmp_path / "pack").mkdir()
    script("", "pack/__init__.py")
    script(text, "config.py")
    script(text, "pack/config.py")
    script("import os; os.environ['OMP_NUM_THREADS'] = '1'", "pack/deeper.py")

    assert guess(script(f"{first}\nimport torch")) == ()


def test_harmless_modules_of_the_program_do_not_end_the_guess(script, tmp_path):
    (tmp_path / "pack" / "inner").mkdir(parents=True)  # without __init__: a namespace
    (tmp_path / "lib").mkdir()
    script("from . import part\nfrom .part import LR, make\nimport main_like", "pack/__init__.py")
    script("import numpy, math\nfrom pack import part\nLR = math.sqrt(2)\ndef make(): return LR", "pack/part.py")
    script("Y = 1", "pack/inner/deep.py")
    script("def run(): pass\nif __name__ == '__main__':\n    run()", "main_like.py")
    script("Z = 1", "lib/elsewhere.py")
    path = script(
        """
        from pack import LR, make
        from pack.inner.deep import Y
        import elsewhere
        X = float(LR) + Y
        import torch
        X = make()
        import pandas
        """
    )

    assert guess(path, [tmp_path / "lib"]) == ("numpy", "torch")
    assert guess(path) == ("numpy",)


def test_a_variable_of_torchs_compiler_that_is_set_anywhere_keeps_torch_out(script):
    script("import os\ndef prepare():\n    os.environ['TORCH_COMPILE_DISABLE'] = '1'", "later.py")
    script(
        "import os\ndef prepare():\n    os.environ['MASTER_PORT'] = '1'; os.environ['OMP_NUM_THREADS'] = '1'", "fine.py"
    )

    assert guess(script("import numpy, torch\nimport later")) == ("numpy",)
    assert guess(script("import numpy, torch\ndef main():\n    from later import prepare")) == ("numpy",)
    assert guess(script("import torch, os\nos.environ['TORCHDYNAMO_DISABLE'] = '1'")) == ()
    assert guess(script("import torch, os\ndef main(env):\n    os.environ.update(env)")) == ()
    assert guess(script("import torch, dotenv\ndef main():\n    dotenv.load_dotenv()")) == ()
    assert guess(script("import torch, os\nimport fine\ndef main():\n    os.environ['RANK']; os.environ.get(x)")) == (
        "torch",
    )


def test_a_neighbour_of_the_same_name_is_not_the_library(script, tmp_path):
    script("X = 1", "numpy.py")
    (tmp_path / "torch").mkdir()
    script("X = 1", "torch/__init__.py")
    (tmp_path / "pandas").mkdir()  # without __init__ the library comes first

    assert guess(script("import numpy, torch, scipy, pandas")) == ("scipy", "pandas")


def test_our_own_sources_on_the_search_path_are_the_library(script, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(holdfast.__file__).resolve().parents[1]))

    assert guess(script("import holdfast, torch")) == ("holdfast", "torch")
    assert not program_sets(script("import holdfast, torch"), is_cuda_variable)


def test_what_a_program_sets_before_its_first_communicator_is_found(script):
    assert program_sets(script("import os, torch; os.environ['NCCL_DEBUG'] = 'INFO'"), is_nccl_variable)
    assert not program_sets(script("import os, torch; os.environ['NCCL_HOSTID'] = 'a'"), is_nccl_variable)
    assert not program_sets(script("import os, torch; os.environ['NCCL_DEBUG'] = 'INFO'"), is_cuda_variable)


def test_a_standard_module_that_is_taken_by_a_neighbour_is_read(script):
    script("import os; os.environ['OMP_NUM_THREADS'] = '1'", "statistics.py")

    assert guess(script("import statistics, torch")) == ()


def test_modules_that_import_each_other_are_read_once(script):
    script("import b\nimport numpy", "a.py")
    script("import a\nfrom a import *", "b.py")

    assert guess(script("import a, torch")) == ("numpy", "torch")


def test_what_cannot_be_read_gives_nothing(tmp_path):
    assert guess(tmp_path / "missing.py") == ()
    assert guess(tmp_path) == ()
    (tmp_path / "binary.py").write_bytes(b"\xff\x00\xfe")
    assert guess(tmp_path / "binary.py") == ()
    (tmp_path / "native.cpython-311-x86_64-linux-gnu.so").touch()
    (tmp_path / "train.py").write_text("import native, torch")
    assert guess(tmp_path / "train.py") == ()


@pytest.mark.parametrize(
    ("path", "modules"),
    [
        ("examples/numpy_regression/train.py", ("numpy", "holdfast")),
        ("examples/gpt/train.py", ("torch", "holdfast")),
        ("examples/torch_ddp/train.py", ("torch", "holdfast")),
        ("bench/scripts/ddp.py", ("torch",)),
        ("bench/scripts/work.py", ("torch",)),
        ("bench/scripts/imports.py", ("torch",)),
        ("bench/scripts/elastic_holdfast.py", ("torch", "holdfast")),
        ("bench/scripts/elastic_gpu.py", ("torch", "holdfast")),
        ("bench/scripts/gpu_snapshot.py", ("torch", "holdfast")),
    ],
)
def test_our_own_scripts_start_warm(path, modules):
    assert guess(REPOSITORY / path) == modules


@pytest.mark.torch
def test_the_lists_of_variables_agree_with_what_is_read_while_torch_is_imported():
    pytest.importorskip("torch", reason="torch is not installed")
    template = Template(["numpy", "torch", "holdfast"])
    try:
        assert template.wait_ready(240), template.why_not
    finally:
        template.close()

    assert len(template.reads) > 100
    assert [name for name in template.reads if is_late_variable(name)] == []
    unknown = {name for name in template.reads if not is_import_variable(name) and not is_lazy_variable(name)}
    assert unknown <= {
        *("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "TMPDIR", "TEMP", "TMP", "PATH", "SAGE_ROOT", "CI"),
        *("_PYTHON_PROJECT_BASE", "_PYTHON_SYSCONFIGDATA_NAME"),
    }
