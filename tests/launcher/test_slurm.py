"""A launch inside a step of Slurm."""

import pytest

from holdfast.errors import UsageError
from holdfast.launcher.options import LaunchOptions
from holdfast.launcher.slurm import first_node, port_of, within_step

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[3-4]",
    "SLURM_NODEID": "1",
}


def test_the_nodes_of_a_step_meet_at_the_first():
    found = within_step(LaunchOptions(script="x"), STEP)

    assert (found.nnodes, found.rdzv_backend, found.rdzv_id, found.node_rank) == ("2", "holdfast", "7.0", 1)
    assert found.rdzv_endpoint == f"n3:{port_of('7.0')}"


def test_what_the_user_says_stays():
    found = within_step(LaunchOptions(script="x", nnodes="1:2", rdzv_id="mine", node_rank=0), STEP)

    assert (found.nnodes, found.rdzv_id, found.node_rank) == ("1:2", "mine", 0)
    assert found.rdzv_endpoint.startswith("n3:")


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        ({"standalone": True}, STEP),
        ({"rdzv_endpoint": "a:1"}, STEP),
        ({"master_addr": "a"}, STEP),
        ({"master_port": 1}, STEP),
        ({"rdzv_backend": "etcd"}, STEP),
        ({"nnodes": "1"}, STEP),
        ({}, {}),
        ({}, {**STEP, "SLURM_STEP_NUM_NODES": "1"}),
        ({}, {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}),
    ],
)
def test_other_launches_are_left_alone(options, environ):
    before = LaunchOptions(script="x", **options)

    assert within_step(before, environ) == before


def test_several_launches_on_a_node_are_refused():
    with pytest.raises(UsageError, match="--ntasks-per-node=1"):
        within_step(LaunchOptions(script="x"), {**STEP, "SLURM_STEP_NUM_TASKS": "8"})


@pytest.mark.parametrize(
    ("text", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[3-4]", "n3"), ("r[2-3]n[08,10],m", "r2n08"), ("a[7]b,c", "a7b"), ("", "")],
)
def test_the_first_node_of_a_list(text, first):
    assert first_node(text) == first


def test_ports_differ_between_jobs_and_attempts():
    ports = {port_of(job, attempt) for job in ("1", "2", "train-x7k2m") for attempt in range(3)}

    assert len(ports) == 9
    assert all(20_000 <= port < 32_000 for port in ports)
