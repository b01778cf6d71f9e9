"""A launch of several nodes that names no place says at once where it waits, and what to type there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from holdfast.launcher.invitation import invitation
from holdfast.wire.address import Endpoint
from tests.launcher.conftest import Launch
from tests.processes import free_port

HERE = Endpoint("127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("flags", "ranks", "rank", "here"),
    [
        (["--nnodes", "2"], range(2), 0, "holdfast launch --node-rank 1 --nnodes 2 train.py --lr 0.1"),
        (["--nnodes=2", "--node_rank=1"], range(2), 1, "holdfast launch --node-rank 0 --nnodes=2 train.py --lr 0.1"),
        (["--node-rank", "1", "--nnodes", "2"], range(2), 1, "holdfast launch --node-rank 0 --nnodes 2 train.py"),
        (["--nnodes", "2:4"], None, 0, "this machine: holdfast launch --nnodes 2:4 train.py --lr 0.1"),
    ],
)
def test_the_command_of_another_node_on_this_machine(
    flags: list[str], ranks: range | None, rank: int, here: str
) -> None:
    said = invitation(flags, ["train.py", "--lr", "0.1"], HERE, "host-a", ranks, rank)

    assert "meet at 127.0.0.1:29500, which only this machine can reach" in said
    assert here in said


def test_many_ranks_are_told_once() -> None:
    said = invitation(["--nnodes", "8"], ["train.py"], HERE, "host-a", range(8), 0)

    assert "--node-rank 1 --nnodes 8 train.py (and so on, with --node-rank up to 7)" in said


def test_the_command_for_other_machines_is_the_same_on_all() -> None:
    said = invitation(["--nnodes", "2", "--node-rank", "0"], ["train.py"], HERE, "host-a", range(2), 0)

    assert said.endswith("with: holdfast launch --rdzv-endpoint host-a:29400 --nnodes 2 train.py")


@pytest.fixture
def port() -> int:
    return free_port()


def test_the_command_that_is_told_brings_the_other_node(launch: Callable[..., Launch], port: int) -> None:
    first = launch("--nnodes", "2", "--master-port", str(port), script="print('done')")
    assert first.process.stderr is not None
    told = first.process.stderr.readline()

    [typed] = re.findall(r"another node on this machine: holdfast launch (.*?)\. For nodes", told)
    second = launch(*shlex.split(typed))

    assert [first.end()[:2], second.end()[:2]] == [(0, "done\n"), (0, "done\n")]
    assert f"meet at 127.0.0.1:{port}, which only this machine can reach" in told


@pytest.mark.parametrize("flags", [["--standalone", "--nnodes", "1:2"], ["--nnodes", "1"]])
def test_a_launch_that_waits_for_no_other_node_invites_none(launch: Callable[..., Launch], flags: list[str]) -> None:
    code, _, err = launch(*flags, "--last-call", "100ms", script="print('done')").end()

    assert (code, "which only this machine can reach" in err) == (0, False)
