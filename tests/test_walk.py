"""The walks of docs/ARCHITECTURE.md: the files on the call stacks at the turns of each are those that it lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES_MAX = 25

#: The turns of a launch: where something is decided or handed on, by file and function.
LAUNCH = {
    "launcher/config.py": "config_from_options",
    "rendezvous/native.py": "_make_member",
    "agent/machine.py": "_ask _start",
    "rendezvous/machine.py": "_on_ask _say_join _on_sealed",
    "wire/link.py": "send",
    "coordinator/rounds.py": "_seal",
    "agent/inbox.py": "put",
    "agent/environment.py": "worker_environment",
    "agent/plans.py": "make_plans",
    "workers/driver.py": "start",
    "workers/starter.py": "start_exec",
}
#: The turns of a worker's death, up to the start of the next one.
DEATH = {
    "workers/driver.py": "_note_end failure start",
    "failures/verdict.py": "root_cause",
    "agent/agent_facts.py": "failed",
    "agent/machine.py": "_on_failure _on_stopped",
    "rendezvous/machine.py": "_on_fail _on_sealed",
    "coordinator/run.py": "_on_fail",
    "coordinator/rounds.py": "_set_broken _seal",
    "coordinator/budget.py": "charge",
}

#: The turns of a step in process, from the program's loop to the moment at which the step counts.
STEP = {
    "train/ledger.py": "next deal is_last commit",
    "train/machine.py": "_ask _on_accounts _count _on_votes _after_step",
    "train/source.py": "choose_source",
    "train/membership.py": "join",
    "train/neighbours.py": "wait",
    "train/state.py": "sync begin",
    "train/ring.py": "open all_reduce_parts all_gather",
    "train/operations.py": "arrived",
    "timer/heartbeat.py": "heartbeat",
}

PROFILE = """
import json, sys, threading

source, turns = sys.argv[1], json.loads(sys.argv[2])
wanted = {(file, name) for file, names in turns.items() for name in names.split()}
files, met = set(), set()


def profile(frame, event, _):
    code = frame.f_code
    turn = (code.co_filename.removeprefix(source), code.co_name)
    if event != "call" or turn not in wanted:
        return
    met.add(turn)
    while frame is not None:
        if frame.f_code.co_filename.startswith(source) and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename.removeprefix(source))
        frame = frame.f_back


def report():
    sys.setprofile(None)
    print(json.dumps([sorted(files), sorted(wanted - met)]))


"""
#: A launch, profiled in the agent.
LAUNCHED = (
    PROFILE
    + """
threading.setprofile(profile)
sys.setprofile(profile)
from holdfast.__main__ import main

sys.argv = ["holdfast", "launch", "--max-restarts", "1", sys.argv[3]]
try:
    main()
finally:
    report()
"""
)
#: A training, profiled in its first worker from the first step on.
TRAINED = (
    PROFILE
    + """
import numpy as np

import holdfast

state = holdfast.NumpyState(weights=np.zeros(4))
with holdfast.elastic(state) as run:
    sys.setprofile(profile)
    for step in run.steps(samples=32, batch=8):
        with step:
            for _ in step.micro_batches:
                step.add(np.ones(4))
            state.weights += step.total()
    sys.setprofile(None)
    if run.rank == 0:
        report()
"""
)


def walk(turns: dict[str, str], tmp_path: Path) -> list[str]:
    """Launch a program, of which the first worker may die, and return the files on the stacks at the turns."""
    (tmp_path / "ok.py").write_text("")
    (tmp_path / "dies.py").write_text(
        "import os, sys\nsys.exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 3)\n"
    )
    (tmp_path / "trains.py").write_text(TRAINED)
    told = [f"{ROOT / 'src' / 'holdfast'}/", json.dumps(turns)]
    if turns is STEP:
        command = ["-m", "holdfast", "launch", "--nproc-per-node", "2", "--preload", "none", "trains.py", *told]
    else:
        command = ["-c", LAUNCHED, *told, "dies.py" if turns is DEATH else "ok.py"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files, missed = json.loads(done.stdout.splitlines()[-1])
    assert missed == [], "a turn has another name now"
    return list(files)


def listed(heading: str) -> list[str]:
    """The files that a list below a heading names first in each line."""
    section = (ROOT / "docs" / "ARCHITECTURE.md").read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    return sorted(line.split("`")[1] for line in section.splitlines() if line.lstrip("0123456789").startswith(". `"))


@pytest.mark.parametrize(
    ("heading", "turns"),
    [
        ("From `holdfast launch` to a worker's first instruction", LAUNCH),
        ("A worker's death", DEATH),
        ("A step in process", STEP),
    ],
    ids=["launch", "death", "step"],
)
def test_the_walk_is_short_and_stands_in_the_architecture(heading: str, turns: dict[str, str], tmp_path: Path) -> None:
    if turns is STEP:
        pytest.importorskip("numpy")
    files = walk(turns, tmp_path)

    assert len(files) <= FILES_MAX
    assert listed(heading) == files
