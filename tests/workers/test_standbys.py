"""Standbys: forks that have prepared and wait become workers at once, and others are prepared behind them."""

import os
import select
import signal
import time

import pytest

from holdfast.facts import facts
from holdfast.workers import DefaultLogsSpecs, Gang, LogOptions, Script, Std, Template, WorkerPlan
from holdfast.workers.standbys import LOST_MAX, REFILL_AFTER_S, Standbys

PATIENCE_S = 240.0
#: As much of torch as a standby and a template look at, with two GPUs.
TORCH = """
import contextlib
from unittest import mock
class _State(list):
    tolist = list
class default_generator:
    get_state = staticmethod(lambda: _State([1]))
    seed = staticmethod(lambda: None)
class cuda:
    opened = []
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    synchronize = staticmethod(lambda: None)
    empty_cache = staticmethod(lambda: None)
    @staticmethod
    @contextlib.contextmanager
    def device(number):
        cuda.opened.append(number)
        yield
float32, bfloat16 = object(), object()
ones, zeros, autocast, nn, optim = (mock.MagicMock() for _ in range(5))
"""


@pytest.fixture
def stand_by():
    """Make standbys of a template of little; all of it is given back after the test."""
    made = []

    def make(number, *, modules=("json",), workers=1, may_open=()):
        template = Template(modules)
        made.append(template)
        assert template.wait_ready(PATIENCE_S), template.why_not
        standbys = Standbys(template, number, workers=workers, may_open=frozenset(may_open))
        made.insert(0, standbys)
        return template, standbys

    yield make
    for each in made:
        each.close()


@pytest.fixture
def told():
    """Return the facts that are told, by their kind."""
    found = []
    stop = facts.listen(lambda fact: found.append(fact))
    yield lambda kind: [fact for fact in found if fact.kind == kind]
    stop()


@pytest.fixture
def start(tmp_path, console):
    gangs = []

    def begin(path, template, standbys, size=1, **env):
        envs = {
            rank: {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_NAME": "default", **env} for rank in range(size)
        }
        dest = DefaultLogsSpecs(str(tmp_path / "logs"), Std.ALL, Std.ALL).reify(envs)
        options = LogOptions(
            stdout_console=console, stderr_console=console, prefixes={rank: f"[{rank}]" for rank in range(size)}
        )
        plans = [WorkerPlan(rank, Script(path, ("--lr", "1")), envs[rank]) for rank in range(size)]
        gangs.append(Gang(plans, dest, options, template=template, standbys=standbys))
        gangs[-1].start()
        return gangs[-1]

    yield begin
    for gang in gangs:
        gang.close()


def wait_ready(standbys, told, number):
    """Look until so many standbys have been ready in all; time is made to pass for those that are to come."""
    until = time.monotonic() + PATIENCE_S
    while len(told("standby_ready")) < number:
        assert time.monotonic() < until, told("standby_lost")
        standbys.look(time.monotonic() + REFILL_AFTER_S)
        select.select(standbys.filenos(), [], [], 0.1)
    return [fact.data["pid"] for fact in told("standby_ready")]


def test_a_standby_becomes_the_worker_and_another_is_prepared(stand_by, told, start, script, console, wait_all):
    template, standbys = stand_by(1)
    first = wait_ready(standbys, told, 1)
    path = script(
        """
        import os, sys
        print(sys.argv[1:], os.environ["COLOUR"], os.environ["RANK"], os.getsid(0) == os.getpid(), os.getppid())
        raise SystemExit(7)
        """
    )

    gang = start(path, template, standbys, COLOUR="red")

    assert [gang.pids()[0]] == first
    assert wait_all(gang)[0].exit_code == 7
    console.wait_line(f"[0]['--lr', '1'] red 0 True {os.getpid()}".encode())
    assert standbys.wakeup() is not None
    assert len(set(wait_ready(standbys, told, 2))) == 2
    assert told("standby_ready")[0].data["host_bytes"] > 0


def test_more_workers_than_standbys_are_forked_from_the_template(stand_by, told, start, script, wait_all):
    template, standbys = stand_by(2)
    ready = wait_ready(standbys, told, 2)

    gang = start(script("raise SystemExit(0)"), template, standbys, 3)

    assert {rank: each.exit_code for rank, each in wait_all(gang).items()} == {0: 0, 1: 0, 2: 0}
    assert len(set(gang.pids().values()) - set(ready)) == 1


def test_a_standby_that_has_died_is_told_and_replaced(stand_by, told, start, script, wait_all, wait_gone):
    template, standbys = stand_by(1)
    [pid] = wait_ready(standbys, told, 1)
    os.kill(pid, signal.SIGKILL)
    gang = start(script("pass"), template, standbys)  # nobody has noticed yet

    assert not wait_all(gang)[0].failed or gang.pids()[0] == pid
    [_, other] = wait_ready(standbys, told, 2)
    os.kill(other, signal.SIGKILL)
    wait_ready(standbys, told, 3)
    assert "was lost: it died" in told("standby_lost")[-1].sentence


def test_a_standby_opens_the_gpu_of_the_ranks_that_it_serves(
    stand_by, told, start, script, console, wait_all, tmp_path, monkeypatch
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "folder"))
    template, standbys = stand_by(2, modules=("torch",), workers=2, may_open={"gpu", "nccl"})
    ready = wait_ready(standbys, told, 2)
    path = script("import os, torch; print('opened', torch.cuda.opened); os.environ['CUDA_VISIBLE_DEVICES'] = '1'")

    gang = start(path, template, standbys, 2)

    assert not any(each.failed for each in wait_all(gang).values())
    assert list(gang.pids().values()) == [pid for _, pid in sorted(zip((0, 1), ready, strict=True))]
    console.wait_line(b"[0]opened [0]", b"[1]opened [1]", b"CUDA_VISIBLE_DEVICES is set after")
    assert [fact.data["device"] for fact in told("standby_ready")] == [0, 1]
    assert "on GPU 1" in told("standby_ready")[1].sentence


def test_with_fewer_standbys_than_gpus_none_is_opened(stand_by, told, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, standbys = stand_by(1, modules=("torch",), workers=2, may_open={"gpu", "nccl"})
    wait_ready(standbys, told, 1)

    assert told("standby_ready")[0].data["device"] is None


def test_a_worker_with_other_gpus_is_forked(stand_by, told, start, script, wait_all, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "folder"))
    template, standbys = stand_by(1, modules=("torch",), workers=1, may_open={"gpu", "nccl"})
    [ready] = wait_ready(standbys, told, 1)

    gang = start(script("pass"), template, standbys, CUDA_VISIBLE_DEVICES="1")

    assert gang.pids()[0] != ready
    assert not wait_all(gang)[0].failed


def test_standbys_that_cannot_be_prepared_are_given_up(stand_by, told, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH.replace("synchronize = staticmethod(lambda: None)", "synchronize = None"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, standbys = stand_by(1, modules=("torch",), may_open={"gpu", "nccl"})
    until = time.monotonic() + PATIENCE_S
    while len(told("standby_lost")) < LOST_MAX and time.monotonic() < until:
        standbys.look(time.monotonic() + REFILL_AFTER_S)
        select.select(standbys.filenos(), [], [], 0.1)

    assert "no more are prepared" in told("standby_lost")[-1].sentence
    assert (standbys.wakeup(), standbys.filenos()) == (None, ())
