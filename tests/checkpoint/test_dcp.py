"""Torch's own format: what we write torch reads, what torch writes we read, and nothing in it is run."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import FlatSlice, Torn, read_dcp, write_dcp
from holdfast.errors import UsageError

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Without a process group torch warns that there is none, which is what we ask for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield


def tree() -> dict[str, Any]:
    return {
        "model": {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"step": 5}}, "groups": [{"lr": 0.1, "params": [0, 1]}]},
        "step": 7,
    }


def check(found: dict[str, Any]) -> None:
    wanted = tree()
    assert torch.equal(found["model"]["weight"], wanted["model"]["weight"])
    assert torch.equal(found["model"]["bias"], wanted["model"]["bias"])
    assert found["optimizer"]["groups"] == wanted["optimizer"]["groups"]
    assert found["step"] == 7


def test_a_tree_comes_back(tmp_path: Path) -> None:
    write_dcp(tree(), tmp_path / "dcp")

    check(read_dcp(tmp_path / "dcp"))


def test_torch_reads_what_we_write(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    write_dcp({"weight": np.arange(5.0), "step": 3}, tmp_path)
    found = {"weight": torch.zeros(5, dtype=torch.float64), "step": 0}
    dcp.load(found, checkpoint_id=str(tmp_path), no_dist=True)

    assert found["weight"].tolist() == [0, 1, 2, 3, 4]
    assert found["step"] == 3


def test_we_read_what_torch_writes(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)

    found = read_dcp(tmp_path)

    assert torch.equal(found["model"]["weight"], model.weight)
    assert torch.equal(found["optim"]["state"]["0"]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


class Evil:
    """Runs something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_metadata_that_names_anything_else_is_refused_and_not_run(tmp_path: Path) -> None:
    write_dcp(tree(), tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))

    with pytest.raises(Torn, match="which no checkpoint needs"):
        read_dcp(tmp_path / "dcp")
    assert not (tmp_path / "ran").exists()


def test_entries_that_are_code_are_refused_and_not_run(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"x": Evil(tmp_path / "ran")}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)

    with pytest.raises(Torn, match="cannot be read"):
        read_dcp(tmp_path / "dcp")
    assert not (tmp_path / "ran").exists()


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Torn, match="no checkpoint of torch's"):
        read_dcp(tmp_path)


@pytest.mark.parametrize("bad", [{1: 2}, [1], {"x": FlatSlice(None, 0, (1,))}])
def test_what_has_no_place_in_the_format_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(UsageError):
        write_dcp(bad, tmp_path)
