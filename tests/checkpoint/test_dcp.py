"""Torch's own format: what we write torch reads, what torch writes we read, and nothing in it is run."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ForkServer
from tests.processes import finish

from holdfast.checkpoint import FlatSlice, read_dcp, write_dcp
from holdfast.errors import CorruptShardError, UsageError

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

    with pytest.raises(CorruptShardError, match="which no checkpoint needs"):
        read_dcp(tmp_path / "dcp")
    assert not (tmp_path / "ran").exists()


def test_entries_that_are_code_are_refused_and_not_run(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"x": Evil(tmp_path / "ran")}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)

    with pytest.raises(CorruptShardError, match="cannot be read"):
        read_dcp(tmp_path / "dcp")
    assert not (tmp_path / "ran").exists()


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match="not a checkpoint of torch's"):
        read_dcp(tmp_path)


@pytest.mark.parametrize("bad", [{1: 2}, [1], {"x": FlatSlice(None, 0, (1,))}])
def test_what_has_no_place_in_the_format_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(UsageError):
        write_dcp(bad, tmp_path)


# -- every kind that torch writes --------------------------------------------------------------------------------------


def test_every_kind_of_entry_comes_back(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {
        "tensors": {"empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5), "bits": torch.tensor([True, False])},
        "expanded": torch.ones(1, 3).expand(4, 3),
        "part": torch.arange(10)[2:5],
        "ordered": OrderedDict(b=torch.ones(2), a=1),
        "list": [1, {"a": torch.ones(2)}, "text", None, b"bytes", 1.5],
        "tuple": (torch.ones(1, dtype=torch.complex64), 2),
        "nothing": {},
    }
    dcp.save(state, checkpoint_id=str(tmp_path), no_dist=True)

    found = read_dcp(tmp_path)

    assert found["tensors"]["empty"].shape == (0, 4)
    assert found["tensors"]["scalar"].item() == 2.5
    assert found["tensors"]["bits"].tolist() == [True, False]
    assert torch.equal(found["expanded"], state["expanded"])
    assert found["part"].tolist() == [2, 3, 4]
    assert found["ordered"]["a"] == 1
    assert found["list"][2:] == ["text", None, b"bytes", 1.5]
    assert torch.equal(found["list"][1]["a"], torch.ones(2))


#: Writes tensors that are spread over two workers: evenly, unevenly, and with a worker that has nothing.
SHARDED = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {
    "even": distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)]),
    "uneven": distribute_tensor(torch.arange(15).reshape(5, 3), mesh, [Shard(0)]),
    "columns": distribute_tensor(torch.arange(15).reshape(5, 3), mesh, [Shard(1)]),
    "lonely": distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)]),
    "same": distribute_tensor(torch.ones(2, 2), mesh, [Replicate()]),
    "step": 7,
}
dcp.save(state, checkpoint_id=folder + "/dcp")
dist.destroy_process_group()
"""


def test_tensors_spread_over_workers_come_back_whole(tmp_path: Path, fork_server: ForkServer) -> None:
    script = tmp_path / "writer.py"
    script.write_text(SHARDED)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    writers = [fork_server.start([str(script), str(rank), str(tmp_path)], env) for rank in range(2)]
    errors = [finish(writer)[1] for writer in writers]
    assert [writer.wait() for writer in writers] == [0, 0], "\n".join(errors)

    found = read_dcp(tmp_path / "dcp")

    assert torch.equal(found["even"], torch.arange(8.0).reshape(4, 2))
    assert torch.equal(found["uneven"], torch.arange(15).reshape(5, 3))
    assert torch.equal(found["columns"], torch.arange(15).reshape(5, 3))
    assert torch.equal(found["lonely"], torch.ones(1, 3))
    assert torch.equal(found["same"], torch.ones(2, 2))
    assert found["step"] == 7


def change_metadata(folder: Path, change: Any) -> None:
    """Rewrite the metadata of a checkpoint of our own."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    changed = change(metadata)
    path.write_bytes(pickle.dumps(metadata if changed is None else changed))


def test_the_properties_that_older_torch_wrote_are_understood(tmp_path: Path) -> None:
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    def older(metadata: Any) -> None:
        for entry in metadata.state_dict_metadata.values():
            if hasattr(entry, "properties"):
                entry.properties = TensorProperties(dtype=entry.properties.dtype)

    write_dcp(tree(), tmp_path)
    change_metadata(tmp_path, older)

    check(read_dcp(tmp_path))


# -- checkpoints made to do harm ---------------------------------------------------------------------------------------


def dotted(module: str, name: str, argument: str) -> bytes:
    """Call something by its dotted name, which protocol 4 looks up attribute by attribute."""
    names = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"\x80\x04" + names + b"\x93X" + struct.pack("<I", len(argument)) + argument.encode() + b"\x85R."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.metadata", "torch.os.system"),
        ("torch.distributed.checkpoint.metadata", "torch.hub.os.system"),
        ("torch.distributed.checkpoint.filesystem", "os.system"),
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
    ],
)
def test_a_name_that_leads_to_code_is_refused_and_not_run(tmp_path: Path, module: str, name: str) -> None:
    write_dcp(tree(), tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(dotted(module, name, f"touch {tmp_path / 'ran'}"))

    with pytest.raises(CorruptShardError, match="which no checkpoint needs"):
        read_dcp(tmp_path / "dcp")
    assert not (tmp_path / "ran").exists()


class Sly:
    """Pickles to an allowed class that is called, or given state, in a way that its owner never meant."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


def sly(which: str) -> Any:
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorProperties

    return {
        "state on a class": Sly(StorageMeta, (), (None, {"__class__": Metadata})),
        "slots of a class": Sly(MetadataIndex, ("x",), (None, {"__hash__": 1})),
        "a class as its own state": Sly(Metadata, ({},), StorageMeta),
        "odd arguments": Sly(TensorProperties, ("a", "b", "c")),
        "no state": Sly(Metadata, ({},)),
        "a list": [Metadata({})],
        "nothing": None,
    }[which]


@pytest.mark.parametrize(
    "which",
    [
        "state on a class",
        "slots of a class",
        "a class as its own state",
        "odd arguments",
        "no state",
        "a list",
        "nothing",
    ],
)
def test_allowed_classes_used_in_odd_ways_are_refused_and_stay_as_they_are(tmp_path: Path, which: str) -> None:
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    write_dcp(tree(), tmp_path)  # Python notes on a class that it was pickled
    before = dict(vars(Metadata)), dict(vars(StorageMeta))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(sly(which)))

    with pytest.raises(CorruptShardError, match="cannot be read"):
        read_dcp(tmp_path)
    assert (dict(vars(Metadata)), dict(vars(StorageMeta))) == before


def set_size(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].size = torch.Size([1 << 40, 1 << 20])


def set_chunk(metadata: Any) -> None:
    entry = metadata.state_dict_metadata["model.weight"]
    entry.size = torch.Size([1 << 40])
    entry.chunks[0].sizes, entry.chunks[0].offsets = torch.Size([1 << 40]), torch.Size([0])
    stored = {index.fqn: info for index, info in metadata.storage_data.items()}
    index = type(next(iter(metadata.storage_data)))("model.weight", [0])
    metadata.storage_data[index] = stored["model.weight"]


def repeat_chunk(metadata: Any) -> None:
    entry = metadata.state_dict_metadata["model.weight"]
    entry.chunks = entry.chunks * 1000


def set_info(name: str, value: Any) -> Any:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            setattr(info, name, value)

    return change


def far_item(metadata: Any) -> None:
    metadata.planner_data["step"] = ("list", 1 << 40)


def deep_path(metadata: Any) -> None:
    metadata.planner_data["step"] = ("a",) * 100_000


def contradict(metadata: Any) -> None:
    metadata.planner_data["step"] = ("model", "weight", "x")


HARMS = {
    "a tensor larger than its parts": (set_size, "do not make up the whole|does not lie within"),
    "a part larger than its bytes": (set_chunk, "longer than what is stored"),
    "a part many times": (repeat_chunk, "stored twice"),
    "a file elsewhere": (set_info("relative_path", "../secret"), "does not lie in the checkpoint"),
    "a file by its whole path": (set_info("relative_path", "/etc/hostname"), "does not lie in the checkpoint"),
    "a file that is none": (set_info("relative_path", "pipe"), "not a regular file"),
    "a file that is missing": (set_info("relative_path", "missing"), "cut off"),
    "bytes behind the end": (set_info("length", 1 << 40), "cut off"),
    "a negative offset": (set_info("offset", -1), "not a count"),
    "an item far away": (far_item, "not whole"),
    "a path too deep": (deep_path, "over 256 items"),
    "a contradiction": (contradict, "contradicts itself"),
}


@pytest.mark.parametrize("which", HARMS)
def test_metadata_that_does_not_fit_is_refused_before_memory_is_taken(tmp_path: Path, which: str) -> None:
    write_dcp(tree(), tmp_path)
    os.mkfifo(tmp_path / "pipe")
    change, sentence = HARMS[which]
    change_metadata(tmp_path, change)

    with pytest.raises(CorruptShardError, match=sentence):
        read_dcp(tmp_path)


@pytest.mark.parametrize("cut", [0, 1, 50, 300])
def test_metadata_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    write_dcp(tree(), tmp_path)
    data = (tmp_path / ".metadata").read_bytes()
    (tmp_path / ".metadata").write_bytes(data[:cut])

    with pytest.raises(CorruptShardError, match="cannot be read"):
        read_dcp(tmp_path)


def test_damage_anywhere_in_the_metadata_ends_in_a_sentence(tmp_path: Path) -> None:
    import random

    write_dcp(tree(), tmp_path / "dcp")
    path = tmp_path / "dcp" / ".metadata"
    whole = path.read_bytes()
    chance = random.Random(7)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            read_dcp(tmp_path / "dcp")
        except CorruptShardError:
            pass
