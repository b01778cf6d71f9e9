"""The walk of docs/ARCHITECTURE.md: the files on the call stacks at the turns of a launch are those that it lists."""

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

PROGRAM = """
import json, sys, threading

source, turns, script = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
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


threading.setprofile(profile)
sys.setprofile(profile)
from holdfast.__main__ import main

sys.argv = ["holdfast", "launch", "--max-restarts", "1", script]
try:
    main()
finally:
    sys.setprofile(None)
    print(json.dumps([sorted(files), sorted(wanted - met)]))
"""


def walk(turns: dict[str, str], tmp_path: Path) -> list[str]:
    """Launch a program, of which the first worker may die, and return the files on the stacks at the turns."""
    (tmp_path / "ok.py").write_text("")
    (tmp_path / "dies.py").write_text(
        "import os, sys\nsys.exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 3)\n"
    )
    script = "dies.py" if turns is DEATH else "ok.py"
    source = f"{ROOT / 'src' / 'holdfast'}/"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, source, json.dumps(turns), script],
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
    [("From `holdfast launch` to a worker's first instruction", LAUNCH), ("A worker's death", DEATH)],
    ids=["launch", "death"],
)
def test_the_walk_is_short_and_stands_in_the_architecture(heading: str, turns: dict[str, str], tmp_path: Path) -> None:
    files = walk(turns, tmp_path)

    assert len(files) <= FILES_MAX
    assert listed(heading) == files
