"""Training in process under `holdfast launch`: a worker that fails is replaced, the others keep running."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch, launch

pytest.importorskip("numpy")

__all__ = ["launch"]

StartLaunch = Callable[..., Launch]
SCRIPT = str(Path(__file__).parent / "fitting.py")
COMMON = ("--preload", "numpy", "--shutdown-timeout", "5")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of one worker that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "holdfast", "launch", "--standalone", SCRIPT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return finals(done.stdout)[0]


def finals(out: str) -> list[str]:
    return re.findall(r"final=(\w+)", out)


def pids(out: str) -> set[str]:
    return set(re.findall(r"pid=(\d+)", out))


@pytest.mark.parametrize("fate", ["kill", "stop", "raise", "exit"])
def test_one_of_three_is_replaced_and_the_others_lose_at_most_a_step(
    launch: StartLaunch, tmp_path: Path, undisturbed: str, fate: str
) -> None:
    job = launch("--nproc-per-node", "3", "--max-restarts", "1", *COMMON, SCRIPT, str(tmp_path), FATE=f"{fate}:1:10",
                 HOLD_AT="15:3")  # fmt: skip
    code, out, err = job.end()

    assert code == 0, err
    assert finals(out) == [undisturbed] * 3
    assert len(pids(out)) == 4, "two survivors and the replaced one, twice"
    assert "the others go on" in err
    assert err.count("round 1: node 0 of 1") == 1, "the agent's own round was never lost"


def test_a_standby_takes_the_place_of_one_that_is_killed(launch: StartLaunch, tmp_path: Path, undisturbed: str) -> None:
    job = launch("--nproc-per-node", "2", "--max-restarts", "1", "--standby", "1", "--json", *COMMON, SCRIPT,
                 str(tmp_path), FATE="kill:1:10", HOLD_AT="5:go,15:2")  # fmt: skip
    assert job.process.stderr is not None
    fact: dict[str, Any] = {"kind": ""}
    while fact["kind"] != "standby_ready":
        fact = json.loads(job.process.stderr.readline())
    (tmp_path / "go").touch()
    code, out, err = job.end()

    assert code == 0, err
    assert finals(out) == [undisturbed] * 2
    assert str(fact["data"]["pid"]) in pids(out)


def test_a_worker_that_hangs_is_found_by_its_heartbeat_and_replaced(
    launch: StartLaunch, tmp_path: Path, undisturbed: str
) -> None:
    job = launch("--nproc-per-node", "2", "--max-restarts", "1", "--hang", "2s", *COMMON, SCRIPT, str(tmp_path),
                 FATE="hang:1:10")  # fmt: skip
    code, out, err = job.end()

    assert code == 0, err
    assert set(finals(out)) == {undisturbed}
    assert "meet_fate" in err, "the report shows where it hung"


def test_the_budget_ends_a_worker_that_never_works(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os, sys
        import holdfast, numpy as np
        if os.environ["RANK"] == "1":
            from holdfast.train.membership import from_environ
            from_environ()
            sys.exit(9)
        state = holdfast.NumpyState(x=np.zeros(1))
        with holdfast.elastic(state) as run:
            for step in run.steps(10, 1, epochs=None):
                with step:
                    step.add(np.ones(1))
                    state.x = state.x + step.total()
    """
    job = launch("--nproc-per-node", "2", "--max-restarts", "2", *COMMON, script=script)
    code, _, err = job.end()

    assert code == 9, err
    assert "all 2 restarts are used" in err


def test_a_training_whose_state_is_lost_ends_the_job_although_restarts_are_left(launch: StartLaunch) -> None:
    script = """
        import os, signal
        import holdfast, numpy as np

        class CannotUndo(holdfast.NumpyState):
            def roll_back(self, mark):
                return False

        state = CannotUndo(x=np.zeros(1))
        with holdfast.elastic(state) as run:
            for step in run.steps(10, 1, epochs=None):
                with step:
                    if step.number == 3 and run.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    step.add(np.ones(1))
                    state.x = state.x + step.total()
    """
    job = launch("--nproc-per-node", "2", "--max-restarts", "50", *COMMON, script=script)
    code, _, err = job.end()

    assert code == 1, err
    assert "no worker holds the whole state of step 3 any more" in err
    assert "not restarting: a restart cannot mend this" in err
    assert err.count("the others go on") == 1, "the killed worker was replaced; none was after the loss"


def test_a_lost_node_costs_the_others_a_step_and_a_new_one_takes_the_state_over(
    launch: StartLaunch, tmp_path: Path, undisturbed: str
) -> None:
    port = HeldPort()
    flags = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--last-call", "0.2", *COMMON]
    flags += ["--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{port.port}", "--rdzv-id", "lost"]
    hosting, joining = ["--rdzv-conf", "is_host=true"], ["--rdzv-conf", "is_host=false"]
    first = launch(*flags, *hosting, SCRIPT, str(tmp_path), HOLD_AT="5:2,20:2")
    first.wait_line("step=5 ")
    second = launch(*flags, *joining, SCRIPT, str(tmp_path), FATE="killagent:1:10")
    assert second.end()[0] == -signal.SIGKILL
    third = launch(*flags, *joining, SCRIPT, str(tmp_path))
    ends = [first.end(), third.end()]
    port.close()

    assert [code for code, _, _ in ends] == [0, 0], ends
    assert set(finals(ends[0][1]) + finals(ends[1][1])) == {undisturbed}
    assert len(pids(ends[0][1])) == 1, "the worker of the first node has never left its process"


def test_a_coordinator_that_is_restarted_costs_nothing(launch: StartLaunch, tmp_path: Path, undisturbed: str) -> None:
    port = HeldPort()
    serve = [sys.executable, "-m", "holdfast", "serve", f"127.0.0.1:{port.port}", "--state-dir", str(tmp_path / "st")]
    env = {**__import__("os").environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    coordinator = subprocess.Popen(serve, env=env)
    flags = ["--nnodes", "1", "--nproc-per-node", "2", *COMMON, "--rdzv-backend", "holdfast", "--rdzv-id", "again"]
    flags += ["--rdzv-endpoint", f"127.0.0.1:{port.port}", "--rdzv-conf", "is_host=false"]
    job = launch(*flags, SCRIPT, str(tmp_path))
    job.wait_line("step=5 ")
    coordinator.kill()
    coordinator.wait()
    coordinator = subprocess.Popen(serve, env=env)
    code, out, err = job.end()
    coordinator.terminate()
    coordinator.wait()
    port.close()

    assert code == 0, err
    assert finals(out) == [undisturbed] * 2
    assert len(pids(out)) == 2


def test_all_workers_are_killed_and_the_state_comes_back_from_memory(launch: StartLaunch, tmp_path: Path) -> None:
    """No storage at all: only the agent's vault outlives them. What the workers did is in the story of the run."""
    script = """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        import holdfast
        from holdfast.checkpoint import Checkpointer, Every, standard_tiers

        state = holdfast.NumpyState(used=np.zeros(40))
        mark = Path(sys.argv[1]) / "killed"
        with (
            Checkpointer(standard_tiers(), every=Every(steps=1)) as kept,
            holdfast.elastic(state, checkpoints=kept) as run,
        ):
            for step in run.steps(40, 4, micro_batch=2):
                with step:
                    ones = np.zeros(40)
                    ones[step.indices] = 1
                    step.add(ones)
                    state.used = state.used + step.total()
                print(f"step={step.number} rank={run.rank}", flush=True)
                if step.number == 5 and not mark.exists() and run.world_size == 1:
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            assert set(state.used.tolist()) == {1.0}
            print("whole", flush=True)
    """
    logs = tmp_path / "logs"
    job = launch(
        "--vault", "--max-restarts", "1", "--log-dir", str(logs), *COMMON, script=script, args=(str(tmp_path),)
    )
    code, out, err = job.end()

    assert code == 0, err
    assert out.count("step=5 ") == 1, "the step before the kill was kept, and not done again"
    assert "whole" in out
    story = "".join(path.read_text() for path in logs.rglob("journal.jsonl"))
    assert "is the newest complete checkpoint (memory)" in story
    assert "checkpoint_written" in story
    assert not list(Path("/dev/shm").glob(f"holdfast-*/*{run_id(logs)}*")), "the vault was left behind"


def run_id(logs: Path) -> str:
    return next(logs.iterdir()).name.rpartition("_")[0]
