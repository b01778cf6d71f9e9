"""The name of the first torchelastic answers as soon as Holdfast is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.compat.names.torchelastic import MODULES
from tests.compat.conftest import Run


def test_every_listed_name_can_be_imported() -> None:
    for name in MODULES:
        if importlib.util.find_spec("torch") is not None or not name.startswith("torchelastic.utils.data"):
            importlib.import_module(name)


def test_the_names_of_0_1_are_ours() -> None:
    from torchelastic.checkpoint import CheckpointUtil, FileSystemCheckpointManager, set_checkpoint_manager
    from torchelastic.p2p import CoordinatorP2P

    import torchelastic

    assert torchelastic.State is holdfast.State
    for name in torchelastic.__all__:
        assert name == "__version__" or getattr(torchelastic, name).__module__.startswith("holdfast.")
    assert CoordinatorP2P is importlib.import_module("holdfast.compat.torchelastic.p2p").CoordinatorP2P
    assert {each.__module__ for each in (CheckpointUtil, FileSystemCheckpointManager, set_checkpoint_manager)} == {
        "holdfast.compat.torchelastic.checkpoint"
    }
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        torchelastic.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torchelastic.nothing")


def test_no_further_word_is_needed(run: Run) -> None:
    run(
        "-I",
        "-c",
        "import torchelastic\n"
        "import torchelastic.metrics as metrics\n"
        "from torchelastic.p2p import CoordinatorP2P\n"
        "metrics.configure(metrics.ConsoleMetricsHandler(), group='torchelastic')\n"
        "metrics.getStream('torchelastic').add_value('x', 1)\n"
        "class MyState(torchelastic.State):\n    pass\n"
        "import sys\n"
        "assert 'torch' not in sys.modules and 'torchx' not in sys.modules\n",
    )


def test_a_fault_that_is_certain_ends_the_worker(run: Run) -> None:
    run(
        "-c",
        "from torchelastic.fault_injection import start_fault_injection_thread\n"
        "start_fault_injection_thread(1.0, 60)\n"
        "import threading; threading.Event().wait()\n",
        code=-9,
    )


def test_arrays_of_bytes_and_models_go_to_everybody(run: Run, tmp_path: Path) -> None:
    """Two workers of a training of 0.1 use the collectives inside `State.sync`."""
    (tmp_path / "old.py").write_text(TRAINING)

    done = run("-m", "holdfast", "launch", "--standalone", "--nproc-per-node", "2", "-q", "old.py", str(tmp_path))

    assert sorted(done.stdout.splitlines()) == ["0 [0, 1, 2] (1, 7) True", "1 [0, 1, 2] (1, 7) True"]


TRAINING = """
import os, sys
import numpy
import torchelastic
import torchelastic.distributed as edist
from torchelastic.p2p import CoordinatorP2P

class Mine(torchelastic.State):
    def __init__(self):
        self.found, self.steps = None, 0
    def sync(self, world_size, rank):
        data = numpy.arange(3, dtype=numpy.uint8) if rank == 0 else None
        whole = edist.broadcast_binary(data, 0).tolist()
        self.found = (rank, whole, edist.all_gather_return_max_long(6 + rank), edist.broadcast_bool(rank == 1, 1))

def step(state):
    if state.steps == 1:  # after a first step both have been in sync: the first that is done ends it for all
        raise StopIteration
    state.steps += 1
    return state, None

where = "holdfast://127.0.0.1:{}/run?min_workers=2&max_workers=2".format(int(os.environ["MASTER_PORT"]))
state = torchelastic.train(CoordinatorP2P("ring", where, 2), step, Mine())
print(*state.found)
"""


def test_collectives_work_on_torchs_group_anywhere(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "group.py").write_text(
        "import numpy, torch.distributed as dist, torchelastic.distributed as edist\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "found = edist.broadcast_binary(numpy.arange(3, dtype=numpy.uint8) if rank == 1 else None, 1).tolist()\n"
        "print(rank, found, edist.all_gather_return_max_long(10**rank), edist.broadcast_long(rank + 5, 1),\n"
        "      edist.broadcast_float_list([0.5, rank], 0), edist.broadcast_bool(rank == 1, 1))\n"
        "dist.destroy_process_group()\n"
    )

    done = run("-W", "ignore", "-m", "holdfast", "launch", "--standalone", "--nproc-per-node", "2", "-q", "group.py")

    same = "[0, 1, 2] (1, 10) 6 [0.5, 0.0] True"
    assert sorted(done.stdout.splitlines()) == [f"0 {same}", f"1 {same}"]


def test_collectives_need_a_group(run: Run) -> None:
    done = run("-c", "from torchelastic.distributed import broadcast_long; broadcast_long(1, 0)", code=1)

    assert "inside State.sync, or after init_process_group" in done.stderr


def test_modules_that_moved_into_torch_are_the_same_ones() -> None:
    import torchelastic.agent.server.api as api
    import torchelastic.timer

    ours: Any = sys.modules["holdfast.agent.api"]
    assert api.WorkerSpec is ours.WorkerSpec
    assert torchelastic.timer.expires is sys.modules["holdfast.timer"].expires


def test_it_answers_before_and_after_the_names_of_others_are_asked_for(run: Run) -> None:
    run(
        "-c",
        "import holdfast.compat\n"
        "take_back = holdfast.compat.install('torchx')\n"
        "import torchelastic.metrics\n"
        "take_back()\n"
        "import torchelastic.timer\n"
        "again = holdfast.compat.install()\n"
        "import torchelastic.events\n"
        "again()\n"
        "import torchelastic.rendezvous\n",
    )
