"""Programs written for TorchElastic find ours behind its names, in torch and where there is no torch."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import sys
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast.agent.api
import holdfast.compat.elastic.agent
import holdfast.metrics
import holdfast.metrics.api
from holdfast import compat
from holdfast.compat.names import View
from holdfast.compat.names.torch_elastic import MODULES
from holdfast.errors import UsageError
from tests.compat.conftest import Run

ELASTIC = "torch.distributed.elastic"
HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = (f"{ELASTIC}.utils.data",)


@pytest.fixture
def _asked() -> Iterator[None]:
    take_back = compat.install("torch")
    yield
    take_back()


def load(name: str) -> Any:
    return importlib.import_module(name)


@pytest.mark.usefixtures("_asked")
class TestAsked:
    """After `compat.install("torch")`."""

    def test_every_listed_name_can_be_imported(self) -> None:
        for name, behind in MODULES.items():
            if name.startswith(NEEDS_TORCH) and not HAS_TORCH:
                continue
            module = load(name)
            expected = name if isinstance(behind, View) else behind
            assert module.__name__ == expected

    def test_every_module_can_be_imported_from_its_parent(self) -> None:
        for name in MODULES:
            if name.startswith(NEEDS_TORCH) and not HAS_TORCH:
                continue
            parent, _, last = name.rpartition(".")
            space: dict[str, Any] = {}
            exec(f"from {parent} import {last}", space)
            assert space[last] is sys.modules[name]

    def test_no_module_of_ours_has_got_a_child_of_theirs(self) -> None:
        for name in MODULES:
            if not name.startswith(NEEDS_TORCH):
                load(name)
        for name, module in list(sys.modules.items()):
            if not name.startswith("holdfast."):
                continue
            for attribute, value in list(vars(module).items()):
                if isinstance(value, ModuleType) and value.__name__.startswith(ELASTIC):
                    raise AssertionError(f"{name}.{attribute} is {value.__name__}")

    def test_classes_of_ours_are_behind_the_names(self) -> None:
        api, server = load(f"{ELASTIC}.agent.server.api"), load(f"{ELASTIC}.agent.server")

        assert api.WorkerSpec is server.WorkerSpec is holdfast.agent.api.WorkerSpec
        assert api.SimpleElasticAgent is holdfast.compat.elastic.agent.SimpleElasticAgent

    def test_a_name_that_we_do_not_have_is_not_found(self) -> None:
        for name in (f"{ELASTIC}.nothing", f"{ELASTIC}.timer.nothing", "torch.distributed.run.nothing"):
            with pytest.raises(ModuleNotFoundError):
                load(name)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            load(f"{ELASTIC}.timer").nothing  # noqa: B018
        with pytest.raises(ImportError, match="cannot import name 'nothing'"):
            exec(f"from {ELASTIC}.timer import nothing")

    def test_a_name_patched_through_a_view_is_the_name_in_use(self) -> None:
        before = holdfast.compat.elastic.agent.WorkerGroup

        with unittest.mock.patch(f"{ELASTIC}.agent.server.api.WorkerGroup") as double:
            assert holdfast.compat.elastic.agent.WorkerGroup is double
            assert holdfast.agent.api.WorkerGroup is double
            with unittest.mock.patch(f"{ELASTIC}.agent.server.api.WorkerGroup") as inner:
                assert holdfast.compat.elastic.agent.WorkerGroup is inner
            assert holdfast.compat.elastic.agent.WorkerGroup is double

        assert holdfast.compat.elastic.agent.WorkerGroup is before
        assert holdfast.agent.api.WorkerGroup is before

    def test_a_name_patched_through_an_alias_is_the_name_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{ELASTIC}.metrics.api.put_metric", print)
        assert holdfast.metrics.api.put_metric is print

    def test_a_renamed_name_is_patched_where_it_lives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import socket

        monkeypatch.setattr(f"{ELASTIC}.agent.server.api._get_fq_hostname", lambda: "elsewhere")

        assert socket.getfqdn() == "elsewhere"

    def test_what_is_patched_and_was_not_there_goes_again(self) -> None:
        with unittest.mock.patch(f"{ELASTIC}.metrics.brand_new", 1, create=True):
            assert holdfast.metrics.brand_new == 1  # type: ignore[attr-defined]

        assert not hasattr(holdfast.metrics, "brand_new")

    def test_deleting_what_is_not_there_is_an_error(self) -> None:
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            del load(f"{ELASTIC}.metrics").nothing

    def test_star_imports_give_the_public_names(self) -> None:
        space: dict[str, Any] = {}
        exec(f"from {ELASTIC}.multiprocessing.errors import *", space)

        assert space["record"] is load("holdfast.failures").record

    def test_the_modules_can_be_walked(self) -> None:
        elastic = load(ELASTIC)

        walked = {
            each.name for each in pkgutil.walk_packages(elastic.__path__, f"{ELASTIC}.") if "data" not in each.name
        }

        listed = {name for name in MODULES if name.startswith(f"{ELASTIC}.") and "data" not in name}
        assert walked == listed

    def test_sources_and_tracebacks_are_those_of_our_files(self) -> None:
        errors, api = load(f"{ELASTIC}.multiprocessing.errors"), load(f"{ELASTIC}.agent.server.api")

        assert "class ProcessFailure" in inspect.getsource(errors.ProcessFailure)
        assert inspect.getsource(api) == inspect.getsource(holdfast.agent.api)
        try:
            api.WorkerSpec(local_world_size=0)
        except UsageError as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            assert trace is not None
            assert trace.tb_frame.f_code.co_filename == holdfast.agent.api.__file__

    @pytest.mark.parametrize("name", [f"{ELASTIC}.agent.server.api", f"{ELASTIC}.metrics.api"])
    def test_a_module_can_be_reloaded_and_stays_the_same(self, name: str) -> None:
        kept = dict(vars(holdfast.metrics.api))
        module = load(name)
        try:
            assert importlib.reload(module) is module is sys.modules[name]
            assert module.__doc__
        finally:
            vars(holdfast.metrics.api).update(kept)  # others hold the classes that were there before

    def test_pickles_name_ours_and_those_that_name_theirs_are_read(self) -> None:
        from holdfast.agent import WorkerState
        from holdfast.events import Event

        data = pickle.dumps(WorkerState.HEALTHY)
        theirs = pickle.dumps(Event("x", load(f"{ELASTIC}.events").EventSource.AGENT), protocol=0)
        theirs = theirs.replace(b"holdfast.events.api", f"{ELASTIC}.events.api".encode())

        assert b"torch" not in data
        assert pickle.loads(data) is WorkerState.HEALTHY
        assert pickle.loads(theirs).name == "x"
        assert type(pickle.loads(theirs)) is Event


def test_a_family_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        UsageError, match="'torch_xla' is not a family of names: choose among torch, torchx, torchelastic"
    ):
        compat.install("torch_xla")


# -- beside the real torch ---------------------------------------------------------------------------------------------


def test_not_asked_the_real_one_is_untouched(run: Run) -> None:
    pytest.importorskip("torch")
    run(
        "-c",
        "import sys, holdfast.compat, holdfast.agent, holdfast.launcher, torchelastic\n"
        "assert 'torch' not in sys.modules\n"
        "import torch.distributed.elastic.agent.server.api as api, torch.distributed.run\n"
        "assert api.WorkerSpec.__module__ == api.__name__ == 'torch.distributed.elastic.agent.server.api'\n"
        "assert 'site-packages' in torch.distributed.run.__file__\n",
    )


@pytest.mark.parametrize(
    "before", ["", "import torch\n", "import torch.distributed.elastic.agent.server, torch.distributed.launcher\n"]
)
def test_asked_ours_answers_and_the_rest_of_torch_stays_real(run: Run, before: str) -> None:
    pytest.importorskip("torch")
    run(
        "-W",
        "ignore",
        "-c",
        f"{before}import holdfast.compat\n"
        "take_back = holdfast.compat.install()\n"
        "import torch, torch.distributed\n"
        "import torch.distributed.elastic.agent.server as server\n"
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "import holdfast.agent, holdfast.launcher\n"
        "assert server.WorkerSpec is holdfast.agent.WorkerSpec\n"
        "assert torch.distributed.elastic.agent.server is server\n"
        "assert torch.distributed.launcher.LaunchConfig is LaunchConfig is holdfast.launcher.LaunchConfig\n"
        "assert 'site-packages' in torch.__file__ and 'site-packages' in torch.distributed.__file__\n"
        "assert torch.ones(2).sum() == 2 and torch.distributed.all_reduce.__module__.startswith('torch')\n"
        "import torch.distributed.checkpoint, torch.distributed.checkpoint._async_process_executor\n"
        "import torch.distributed.checkpoint._experimental.barriers, torch.backends.xeon.run_cpu\n"
        "take_back()\n"
        "import torch.distributed.elastic.agent.server\n"
        "assert torch.distributed.elastic.agent.server.WorkerSpec.__module__.startswith('torch')\n",
    )


def test_what_was_loaded_before_leads_to_ours_by_attribute_at_once(run: Run) -> None:
    pytest.importorskip("torch")
    run(
        "-W",
        "ignore",
        "-c",
        "import torch.distributed.elastic.timer\n"
        "import holdfast.compat, holdfast.timer\n"
        "theirs = torch.distributed.elastic\n"
        "take_back = holdfast.compat.install('torch')\n"
        "assert torch.distributed.elastic.timer.expires is holdfast.timer.expires\n"
        "take_back()\n"
        "assert torch.distributed.elastic is theirs\n"
        "assert torch.distributed.elastic.timer.expires is not holdfast.timer.expires\n",
    )


# -- where there is no torch -------------------------------------------------------------------------------------------


def test_without_torch_the_names_answer_and_torch_stays_missing(run_without_torch: Run) -> None:
    run_without_torch(
        "-c",
        "import holdfast.compat, importlib.util, sys\n"
        "take_back = holdfast.compat.install()\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "assert 'holdfast.launcher' not in sys.modules, 'nothing is imported before it is used'\n"
        "from torch.distributed.elastic.agent.server import WorkerSpec\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "from torch.distributed.elastic import agent, utils\n"
        "from torch.distributed.run import get_args_parser\n"
        "from torch.distributed.launcher.api import LaunchConfig\n"
        "import holdfast.agent, pkgutil\n"
        "assert WorkerSpec is holdfast.agent.WorkerSpec\n"
        "assert agent.server.WorkerSpec is WorkerSpec\n"
        "elastic = sys.modules['torch.distributed.elastic']\n"
        "assert 'rendezvous' in [each.name for each in pkgutil.iter_modules(elastic.__path__)]\n"
        "for line in ('import torch', 'import torch.nn', 'from torch import nn', 'import torch.distributed',\n"
        "             'from torch.distributed import init_process_group',\n"
        "             'from torch.distributed.elastic.utils.data import CyclingIterator'):\n"
        "    try:\n        exec(line)\n"
        "    except ModuleNotFoundError as error:\n        assert error.name == 'torch', (line, error)\n"
        "    else:\n        raise AssertionError(line)\n"
        "import torch.distributed.elastic.metrics as metrics\n"
        "import torch.distributed.elastic.agent.server\n"
        "assert torch.distributed.elastic.agent.server.WorkerSpec is WorkerSpec\n"
        "assert metrics.put_metric\n"
        "try:\n    torch.nn\n"
        "except AttributeError as error:\n    assert 'not installed' in str(error), error\n"
        "else:\n    raise AssertionError\n"
        "assert 'torch' not in sys.modules and importlib.util.find_spec('torch') is None\n"
        "take_back()\n"
        "import builtins\n"
        "assert type(builtins.__import__) is type(len)\n"
        "assert not [name for name in sys.modules if name.startswith('torch.')]\n"
        "try:\n    from torch.distributed.elastic import agent\n"
        "except ModuleNotFoundError:\n    pass\n"
        "else:\n    raise AssertionError(agent)\n",
    )


def test_without_torch_a_launcher_of_ones_own_runs_functions(run_without_torch: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "import os\n"
        "def work(base):\n    return base + int(os.environ['RANK'])\n"
        "if __name__ == '__main__':\n"
        "    config = LaunchConfig(1, 1, nproc_per_node=2, rdzv_endpoint='localhost:0', run_id='r')\n"
        "    print(elastic_launch(config, work)(40))\n"
    )

    done = run_without_torch("-m", "holdfast.compat", "own.py")

    assert done.stdout == "{0: 40, 1: 41}\n"
