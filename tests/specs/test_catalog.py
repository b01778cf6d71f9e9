"""Named resources: from tables, plugins, the environment and programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import specs
from holdfast.errors import PluginBrokenError
from holdfast.facts import Fact
from holdfast.specs import (
    NULL_RESOURCE,
    Resource,
    get_named_resources,
    named_resources,
    register_named_resource,
    resource,
)
from tests.specs.conftest import Install

ITYPE = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("name", "cpu", "gpu", "mem_mb"),
    [
        ("gpu.small", 8, 1, 32768),
        ("gpu.medium", 16, 2, 65536),
        ("gpu.large", 32, 4, 131072),
        ("gpu.xlarge", 64, 8, 262144),
        ("cpu.nano", 1, 0, 512),
        ("cpu.micro", 1, 0, 1024),
        ("cpu.small", 1, 0, 2048),
        ("cpu.medium", 2, 0, 4096),
        ("cpu.large", 2, 0, 8192),
        ("cpu.xlarge", 8, 0, 32768),
    ],
)
def test_generic_sizes_are_those_of_torchx(name: str, cpu: int, gpu: int, mem_mb: int) -> None:
    assert named_resources[name] == Resource(cpu, gpu, mem_mb)


@pytest.mark.parametrize(
    ("name", "cpu", "gpu", "gib", "devices"),
    [
        ("aws_t3.medium", 2, 0, 4, {}),
        ("aws_p3.16xlarge", 64, 8, 488, {}),
        ("aws_p5.48xlarge", 192, 8, 2048, {"vpc.amazonaws.com/efa": 32}),
        ("aws_trn1.32xlarge", 128, 0, 512, {"vpc.amazonaws.com/efa": 8, "aws.amazon.com/neurondevice": 16}),
        ("gcp_a3-highgpu-8g", 208, 8, 1872, {}),
        ("azure_Standard_ND96isr_H100_v5", 96, 8, 1900, {}),
    ],
)
def test_a_clouds_machine_leaves_some_memory_to_its_system(
    name: str, cpu: int, gpu: int, gib: int, devices: dict[str, int]
) -> None:
    machine = name.partition("_")[2]

    assert named_resources[name] == Resource(cpu, gpu, gib * 983, {ITYPE: machine}, devices)


def test_every_family_that_torchx_knows_is_there() -> None:
    families = {name.removeprefix("aws_").partition(".")[0] for name in named_resources if name.startswith("aws_")}

    general = {"t3", "m5", "m5d", "c5"}
    gpus = {"p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200", "g4dn", "g5", "g6e"}
    assert families >= general | gpus | {"trn1", "inf2"}


def test_every_machine_of_the_tables_is_plausible() -> None:
    machines = [(name, made) for name, made in named_resources.items() if ITYPE in made.capabilities]

    assert len(machines) > 150
    for name, made in machines:
        assert name.endswith(f"_{made.capabilities[ITYPE]}")
        assert 1 <= made.cpu <= 256, name
        assert made.gpu in (0, 1, 2, 4, 8, 16), name
        assert 0.2 * 983 <= made.memMB / made.cpu <= 32 * 983, name


def test_the_makers_can_be_imported_by_name() -> None:
    from holdfast.specs import named_resources_aws, named_resources_gcp, named_resources_generic

    assert named_resources_aws.aws_p5_48xlarge() == named_resources["aws_p5.48xlarge"]  # type: ignore[attr-defined]
    assert named_resources_gcp.gcp_a2_highgpu_1g().gpu == 1  # type: ignore[attr-defined]
    assert named_resources_generic.gpu_small() == named_resources["gpu.small"]  # type: ignore[attr-defined]


def test_each_answer_is_ones_own() -> None:
    named_resources["aws_p5.48xlarge"].devices.clear()
    named_resources["NULL"].tags["x"] = 1

    assert named_resources["aws_p5.48xlarge"].devices
    assert NULL_RESOURCE.tags == {}


def test_a_name_that_is_not_known_gets_a_close_match() -> None:
    with pytest.raises(KeyError, match=r"no named resource 'gpu.smal'; did you mean gpu.small"):
        named_resources["gpu.smal"]
    with pytest.raises(KeyError, match="`holdfast resources` lists them"):
        get_named_resources("qqqqqqqqqqqqqqqqqqqq")


def test_they_can_be_looked_through() -> None:
    assert "gpu.small" in named_resources
    assert "gpu.tiny" not in named_resources
    assert list(named_resources) == list(named_resources.keys())
    assert dict(named_resources.items())["cpu.nano"] == Resource(1, 0, 512)
    assert len(named_resources) == len(list(named_resources))
    assert named_resources["MISSING"] == named_resources["NULL"] == NULL_RESOURCE


def test_a_resource_is_made_of_numbers_or_by_name() -> None:
    assert resource() == Resource(cpu=2, gpu=0, memMB=1024)
    assert resource(cpu=0, gpu=None, memMB=0) == Resource(cpu=2, gpu=0, memMB=1024)
    assert resource(cpu=0.5, gpu=1, memMB=4) == Resource(cpu=0.5, gpu=1, memMB=4)
    assert resource(cpu=99, h="gpu.small") == Resource(cpu=8, gpu=1, memMB=32768)


def test_the_dict_of_factories_can_be_written_to_and_counts_at_once() -> None:
    specs._named_resource_factories["gpu_x2"] = lambda: Resource(cpu=16, gpu=2, memMB=122_000)

    assert type(specs._named_resource_factories) is dict
    assert named_resources["gpu_x2"].gpu == 2
    del specs._named_resource_factories["gpu_x2"]
    assert "gpu_x2" not in named_resources


def test_the_dict_of_factories_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "_named_resource_factories", {"only": lambda: Resource(1, 2, 3)})

    assert list(named_resources) == ["only"]
    assert resource(h="only").gpu == 2


def test_what_a_program_registers_wins_until_reset() -> None:
    register_named_resource("gpu.small", lambda: Resource(1, 1, 1))
    assert named_resources["gpu.small"] == Resource(1, 1, 1)

    named_resources.reset()
    assert named_resources["gpu.small"] == Resource(8, 1, 32768)


def test_plugins_of_both_groups_are_added_and_win_over_tables(install: Install, tmp_path: Path) -> None:
    module = f"{tmp_path.name}_resources"
    install(
        f"[holdfast.named_resources]\ngpu_x1 = {module}:ours\ncpu.small = {module}:ours\n"
        f"[torchx.named_resources]\ngpu_x1 = {module}:theirs\ngpu_x2 = {module}:theirs\n",
        "from holdfast.specs import Resource\n"
        "def ours():\n    return Resource(cpu=8, gpu=1, memMB=61_000)\n"
        "def theirs():\n    return Resource(cpu=16, gpu=2, memMB=122_000)\n",
    )

    assert named_resources["gpu_x1"].gpu == 1
    assert named_resources["gpu_x2"] == Resource(cpu=16, gpu=2, memMB=122_000)
    assert named_resources["cpu.small"].cpu == 8
    assert "gpu.small" in named_resources


def test_a_broken_plugin_costs_only_itself_and_is_named(install: Install, tmp_path: Path, told: list[Fact]) -> None:
    module = f"{tmp_path.name}_resources"
    install(
        "[torchx.named_resources]\n"
        f"good = {module}:good\nraises = {module}:raises\nnumber = {module}:number\nmissing = no_such_module_here:x\n",
        "from holdfast.specs import Resource\n"
        "def good():\n    return Resource(1, 0, 1)\n"
        "def raises():\n    raise RuntimeError('boom')\n"
        "def number():\n    return 7\n",
    )

    assert named_resources["good"] == Resource(1, 0, 1)
    with pytest.raises(PluginBrokenError, match=r"'missing' of sample .*no_such_module_here"):
        named_resources["missing"]
    with pytest.raises(PluginBrokenError, match=r"'raises' of sample .*RuntimeError: boom"):
        named_resources["raises"]
    with pytest.raises(ValueError, match="'number' returned 7, which is not a Resource"):
        named_resources["number"]

    assert told == []
    assert {"good", "gpu.small"} <= dict(named_resources.items()).keys()
    assert [fact.data["plugin"] for fact in told] == ["raises", "number", "missing"]


def test_a_plugin_is_not_imported_before_its_name_is_asked_for(install: Install, tmp_path: Path) -> None:
    module = f"{tmp_path.name}_resources"
    install(f"[torchx.named_resources]\nlazy = {module}:x\n", "raise AssertionError('imported')")

    assert "lazy" in named_resources
    assert named_resources["gpu.small"].gpu == 1
    assert module not in sys.modules


def test_resources_of_an_installed_torchx_become_ours(install: Install, tmp_path: Path) -> None:
    module = f"{tmp_path.name}_resources"
    install(
        f"[torchx.named_resources]\nforeign = {module}:x\n",
        "class Resource:\n"
        "    def __init__(self):\n"
        "        self.cpu, self.gpu, self.memMB, self.capabilities = 1, 2, 3, {'a': 'b'}\n"
        "def x():\n    return Resource()\n",
    )

    assert named_resources["foreign"] == Resource(1, 2, 3, {"a": "b"})


def test_the_environment_may_name_a_module_of_resources(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[Fact]
) -> None:
    module = f"{tmp_path.name}_resources"
    monkeypatch.setenv("TORCHX_CUSTOM_NAMED_RESOURCES", module)
    install("", "from holdfast.specs import Resource\nNAMED_RESOURCES = {'mine': lambda: Resource(1, 2, 3)}\n")
    assert named_resources["mine"].gpu == 2

    monkeypatch.setenv("TORCHX_CUSTOM_NAMED_RESOURCES", "no_such_module_here")
    named_resources.reset()
    assert "mine" not in named_resources
    assert "no_such_module_here" in told[-1].sentence


def test_importing_specs_reads_no_tables_and_no_metadata() -> None:
    code = (
        "import sys, holdfast.specs\n"
        "loaded = [n for n in sys.modules if 'named_resources' in n or n in ('importlib.metadata', 'difflib')]\n"
        "assert loaded == [], loaded\n"
        "assert holdfast.specs.named_resources['cpu.nano'].memMB == 512\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_machine_of_a_resource_is_told_by_its_capabilities() -> None:
    from holdfast.specs.named_resources_aws import instance_type_from_resource

    assert instance_type_from_resource(named_resources["aws_p5.48xlarge"]) == "p5.48xlarge"
    with pytest.warns(UserWarning, match="give it the capability node.kubernetes.io/instance-type"):
        assert instance_type_from_resource(Resource(1, 1, 1)) == ""
