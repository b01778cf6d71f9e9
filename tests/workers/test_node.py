"""What a node has to offer: ports, CPUs, GPUs, and the kernel's account of memory."""

import os
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.workers import (
    AffinityMode,
    NumaOptions,
    Program,
    WorkerPlan,
    bind,
    gpu_count,
    local_world_size,
)
from holdfast.workers.accelerators import visible_devices
from holdfast.workers.numa import Cpu, choose, nodes_of_ranks, parse_list, read_cpus
from holdfast.workers.oom import oom_kills

# -- GPUs ----------------------------------------------------------------------------------------------------------


def _machine(root: Path, gpus=0, device_files=0):
    for number in range(gpus):
        (root / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in [*(f"nvidia{number}" for number in range(device_files)), "nvidiactl", "nvidia-uvm"]:
        (root / "dev" / name).write_text("")
    return root


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("3,1", 2), ("0,9,1", 1), ("GPU-aaaa,GPU-bbbb", 2), ("NoDevFiles", 1)],
)
def test_gpus_are_counted_as_cuda_would_see_them(tmp_path, visible, count):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert gpu_count(env, _machine(tmp_path, gpus=4)) == count


def test_device_files_count_where_the_driver_shows_no_list(tmp_path):
    assert gpu_count({}, _machine(tmp_path, device_files=2)) == 2
    assert gpu_count({}, tmp_path / "nothing") == 0
    assert visible_devices("0", 0) == []


def test_the_number_of_workers_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.workers.accelerators.gpu_count", lambda _: 0)
    here = len(os.sched_getaffinity(0))

    assert local_world_size("8") == 8
    assert local_world_size("cpu") == local_world_size("auto", root=tmp_path) == here
    with pytest.raises(UsageError, match="no GPU is visible here"):
        local_world_size("gpu", root=tmp_path)
    for text in ("0", "-2", "1.5", ""):
        with pytest.raises(UsageError, match="neither a number above 0 nor one of auto, cpu, gpu, xpu"):
            local_world_size(text)

    monkeypatch.setattr("holdfast.workers.accelerators.gpu_count", lambda _: 4)
    assert local_world_size("gpu") == local_world_size("auto") == 4


TORCH = """
class devices:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 3)

accelerator = cuda = xpu = npu = devices

class _C:
    _get_privateuse1_backend_name = staticmethod(lambda: "npu")
"""


@pytest.mark.parametrize("kind", ["auto", "gpu", "xpu", "npu"])
def test_accelerators_that_are_not_nvidias_are_counted_by_torch(tmp_path, monkeypatch, kind):
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (tmp_path / "dev" / "dri" / "renderD128").write_text("")
    (tmp_path / "torch_npu-1.0.dist-info").mkdir()
    (tmp_path / "torch_npu-1.0.dist-info" / "entry_points.txt").write_text("[torch.backends]\nnpu = torch_npu:begin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("holdfast.workers.accelerators.gpu_count", lambda _: 0)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    assert local_world_size(kind, env, root=tmp_path) == 3
    with pytest.raises(UsageError, match="neither a number above 0"):
        local_world_size("many", env)


def test_a_device_that_torch_does_not_see_is_told(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH.replace("True", "False"))
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(UsageError, match="--nproc-per-node xpu: torch sees no such device here"):
        local_world_size("xpu", {**os.environ, "PYTHONPATH": str(tmp_path)})


def test_a_word_that_cannot_be_a_device_is_refused_without_importing_torch(tmp_path, monkeypatch):
    def asked(*_):
        raise AssertionError

    monkeypatch.setattr("holdfast.workers.accelerators.ask_torch", asked)
    monkeypatch.setattr("sys.path", [str(tmp_path)])

    with pytest.raises(UsageError, match="'two' is neither a number above 0"):
        local_world_size("two")


# -- NUMA ----------------------------------------------------------------------------------------------------------

#: Two sockets of two nodes of four cores with two threads each; an L3 for every two cores.
CPUS = [
    Cpu(n, node=n % 16 // 4, socket=n % 16 // 8, core=(n % 16, n % 16 + 16), cache=(n % 16 // 2,)) for n in range(32)
]


def test_a_node_and_a_socket_are_whole():
    assert choose(AffinityMode.NODE, CPUS, [1])[0] == {4, 5, 6, 7, 20, 21, 22, 23}
    assert choose(AffinityMode.SOCKET, CPUS, [1])[0] == {*range(8), *range(16, 24)}


def test_exclusive_shares_do_not_overlap_and_keep_threads_together():
    chosen = choose(AffinityMode.EXCLUSIVE, CPUS, [0, 0, 0])

    assert [len(cpus) for cpus in chosen.values()] == [2, 2, 4]
    assert frozenset.union(*chosen.values()) == {0, 1, 2, 3, 16, 17, 18, 19}
    assert chosen[0] == {0, 16}


def test_core_complexes_are_given_out_in_turn():
    chosen = choose(AffinityMode.CORE_COMPLEX, CPUS, [0, 0, 0])

    assert chosen == {0: {0, 1, 16, 17}, 1: {2, 3, 18, 19}, 2: {0, 1, 16, 17}}


def test_too_many_workers_for_exclusive_cores_are_refused():
    with pytest.raises(UnavailableError, match="4 cores for 5 workers"):
        choose(AffinityMode.EXCLUSIVE, CPUS, [0] * 5)
    with pytest.raises(UnavailableError, match="NUMA node 9"):
        choose(AffinityMode.NODE, CPUS, [9])


def test_without_gpus_workers_are_spread_over_the_nodes(tmp_path):
    assert nodes_of_ranks(8, CPUS, tmp_path) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert nodes_of_ranks(2, CPUS, tmp_path) == [0, 2]


def test_with_gpus_workers_follow_them(tmp_path, monkeypatch):
    _machine(tmp_path, gpus=2)
    for number, node in ((0, 3), (1, -1)):
        folder = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert nodes_of_ranks(2, CPUS, tmp_path) == [3, 0]
    with pytest.raises(UnavailableError, match="2 GPUs for 3"):
        nodes_of_ranks(3, CPUS, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert nodes_of_ranks(2, CPUS, tmp_path) == [0, 3]


def test_this_machine_can_be_read_and_bound(start, wait_all, console):
    cpus = bind(NumaOptions(AffinityMode.NODE), 1)

    assert cpus[0] <= os.sched_getaffinity(0)
    assert {cpu.number for cpu in read_cpus()} == os.sched_getaffinity(0)


def test_a_bound_worker_runs_where_it_was_told(wait_all, capfd):
    from holdfast.workers import Gang

    one = frozenset([min(os.sched_getaffinity(0))])
    with Gang([WorkerPlan(0, Program(("grep", "Cpus_allowed_list", "/proc/self/status")), cpus=one)]) as gang:
        gang.start()
        wait_all(gang)

    assert capfd.readouterr().out.split()[-1] == str(next(iter(one)))


def test_where_binding_is_impossible_it_fails_or_falls_back(tmp_path, caplog):
    with pytest.raises(UnavailableError, match="cannot be bound"):
        bind(NumaOptions(AffinityMode.NODE), 1, tmp_path)
    assert bind(NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True), 1, tmp_path) == {}
    assert "run unbound" in caplog.text
    assert bind(None, 1) == {}


def test_kernel_lists_are_read():
    assert parse_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_list("\n") == []


# -- memory --------------------------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_counter_of_a_second_generation_cgroup_is_read(tmp_path):
    _write(tmp_path / "proc/self/cgroup", "0::/jobs/7\n")
    _write(tmp_path / "cgroup/jobs/7/memory.events", "low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\n")

    assert oom_kills(tmp_path / "cgroup", tmp_path / "proc") == 2


def test_the_counter_of_a_first_generation_cgroup_is_read(tmp_path):
    _write(tmp_path / "proc/self/cgroup", "4:cpu:/x\n3:memory,hugetlb:/jobs\n0::/\n")
    _write(tmp_path / "cgroup/memory/jobs/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")

    assert oom_kills(tmp_path / "cgroup", tmp_path / "proc") == 3


def test_the_hosts_counter_stands_in_and_nothing_is_nothing(tmp_path):
    assert oom_kills(tmp_path / "cgroup", tmp_path / "proc") is None

    _write(tmp_path / "proc/vmstat", "nr_free_pages 1\noom_kill 9\n")
    assert oom_kills(tmp_path / "cgroup", tmp_path / "proc") == 9
