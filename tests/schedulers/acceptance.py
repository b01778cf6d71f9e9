"""The run that every scheduler must come through: a node is killed and no step is lost, also the one that carries the
coordinator; a cancel leaves nothing behind; a failure shows its traceback. Driven by the command line, as a user would.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: Tests that take longer than `make test` has time for.
only_in_test_clusters = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_TEST_CLUSTERS"), reason="only in make test-clusters"
)
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 400.0
#: Three nodes have trained for some steps; where the machine is busy, the third may come late.
ALL_TRAIN = r"step (?:[5-9]|\d\d) of 3"

#: Its words: how long a step takes; how long one takes after a loss; and how many nodes there must be again for that.
#: So there is time to kill something, and for it to come back, also on a busy machine, and the rest does not take long.
TRAIN = """
import sys, time
import numpy as np
import holdfast

inputs = np.random.default_rng(0).normal(size=(960, 4))
wanted = inputs @ np.array([1.0, 2.0, 3.0, 4.0])
state = holdfast.NumpyState(weights=np.zeros(4))
before, after, enough = [float(word) for word in [*sys.argv[1:], *(sys.argv[1], 0)[len(sys.argv) - 2 :]]]
began, full = None, None
with holdfast.elastic(state) as run:
    for step in run.steps(samples=len(inputs), batch=96, micro_batch=8, epochs=10):
        with step:
            began = step.number if began is None else began  # one that begins late came in place of another
            full = run.round if full is None and run.world_size == 3 else full
            is_after = began > 5 or (full is not None and run.round > full)
            time.sleep(after if is_after and run.world_size >= enough else before)
            for micro in step.micro_batches:
                chosen = list(micro.indices)
                error = inputs[chosen] @ state.weights - wanted[chosen]
                step.add(2 * error @ inputs[chosen])
            state.weights -= 0.1 * step.total() / step.samples
        if step.committed and run.rank == 0:
            print(f"step {step.number} of {run.world_size}", flush=True)
    if run.rank == 0:
        print(f"finished {run.progress} {state.weights.tobytes().hex()}", flush=True)
"""
FAIL = """
import os

def deep():
    if os.environ["RANK"] == "1":
        raise ValueError("the loss is not a number")
deep()
"""
WAIT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "3600"])
print("up", flush=True)
time.sleep(3600)
"""


class Shell:
    """A user's shell: a folder with code in it, and `holdfast`."""

    def __init__(self, folder: Path, scheduler: str, options: list[str], home: Path) -> None:
        self.code = folder / "code"
        self.code.mkdir()
        for name, text in {"train.py": TRAIN, "fail.py": FAIL, "wait.py": WAIT}.items():
            (self.code / name).write_text(text)
        self._options = ["-s", scheduler, *options, "--workspace", "."]
        self._env = {**os.environ, "HOLDFAST_HOME": str(home), "PYTHONWARNINGS": "ignore"}

    def holdfast(self, *words: str, check: bool = True) -> str:
        """Run a command of Holdfast and return what it printed."""
        done = self.start(*words)
        out, said = done.communicate(timeout=PATIENCE_S)
        assert not check or done.returncode == 0, f"{words} exited with {done.returncode}: {out}{said}"
        return out if check else out + said

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of Holdfast."""
        program = [sys.executable, "-m", "holdfast", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(program, cwd=self.code, env=self._env, stdout=pipe, stderr=pipe, text=True)

    def submit(self, *words: str) -> str:
        """Submit a script; returns the job's handle."""
        return self.holdfast("run", *self._options, *words).strip()

    def status(self, handle: str) -> dict:
        return json.loads(self.holdfast("status", "--json", handle))

    def node(self, handle: str, replica: int) -> str:
        """Name the node on which a replica runs, as `kill` takes it."""
        return next(each for each in self.status(handle)["roles"][0]["replicas"] if each["id"] == replica)["hostname"]

    def wait_lines(self, handle: str, pattern: str) -> list[str]:
        """Follow a job's log until a line matches; returns what came until then."""
        reader = self.start("log", "-f", handle)
        found: list[str] = []
        try:
            for line in reader.stdout:
                found.append(line.rstrip())
                if re.search(pattern, line):
                    return found
        finally:
            reader.terminate()
            reader.communicate()
        raise AssertionError(f"the job ended without a line like {pattern!r}: {found[-20:]}")

    def wait_end(self, handle: str) -> dict:
        self.holdfast("wait", handle, check=False)
        return self.status(handle)


def survives_a_killed_node(shell: Shell, kill) -> None:
    """Two or more nodes train; one that is not the first is killed; the others go on and end well."""
    handle = shell.submit("-j", "2:3x1", "--last-call", "5s", "--lease", "3s", "train.py", "1", "0.1")
    shell.wait_lines(handle, ALL_TRAIN)
    kill(shell.node(handle, 2))
    shell.wait_lines(handle, r"step \d+ of 2")
    ended_without_losing_a_step(shell, handle)


def survives_a_killed_coordinator(
    shell: Shell, kill, *, retries: int = 2, comes_back: bool = True, lines_die: bool = False
) -> None:
    """The node with the coordinator is killed, and no step is lost.

    With `retries` it comes back at its place, unless there is no node for it; where nothing could start it again,
    another one carries the coordinator.
    The first node prints the steps; `lines_die` says that its last lines may be lost with it, as where nodes share no
    disk.
    """
    enough = 3 if retries and comes_back else 2
    words = f"-j 2:3x1 --last_call 5s --lease 3s --script train.py 1 0.1 {enough}"
    moves = ["--rdzv_conf", "takeover=false"] if retries else []
    handle = shell.submit("dist.elastic", "--max_retries", str(retries), *moves, *words.split())
    shell.wait_lines(handle, ALL_TRAIN)
    kill(shell.node(handle, 0))
    ended_without_losing_a_step(shell, handle, lines_die=lines_die)


def ended_without_losing_a_step(shell: Shell, handle: str, *, lines_die: bool = False) -> None:
    """Wait for the end of a training, and compare it with one that nothing disturbed: to the last bit."""
    status = shell.wait_end(handle)
    lines = shell.holdfast("log", handle)
    steps = sorted({int(number) for number in re.findall(r"step (\d+) of", lines)})
    finished = re.findall(r"finished (\d+) ([0-9a-f]+)", lines)

    assert status["state"] == "SUCCEEDED", (status, lines[-5000:])
    assert lines_die or steps == list(range(100)), "a step was lost"
    assert len(finished) == 1
    assert finished[0][0] == "100"
    assert finished[0][1] == quiet_weights(shell), "the result is that of a run that nothing disturbed"


def quiet_weights(shell: Shell) -> str:
    """Train on this machine alone, undisturbed, and return the weights."""
    lines = shell.holdfast("launch", "--nproc-per-node", "1", "train.py", "0")
    return re.search(r"finished 100 ([0-9a-f]+)", lines)[1]


def a_cancel_leaves_nothing(shell: Shell, left) -> None:
    """A job that is cancelled in the middle is CANCELLED, and `left` finds no process of it."""
    handle = shell.submit("-j", "2x1", "wait.py")
    shell.wait_lines(handle, "up")
    assert left(), "the processes of a job that runs can be found"
    shell.holdfast("cancel", handle)
    status = shell.wait_end(handle)

    assert status["state"] == "CANCELLED"
    deadline = time.monotonic() + PATIENCE_S
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def a_failure_shows_its_traceback(shell: Shell) -> None:
    """`holdfast status` shows what ended the rank that failed."""
    handle = shell.submit("-j", "2x1", "fail.py")
    status = shell.wait_end(handle)
    text = shell.holdfast("status", handle)

    assert status["state"] == "FAILED"
    assert "ValueError: the loss is not a number" in text
    assert re.search(r'\| +File ".*fail.py", line 6, in deep', text), text
    assert "rank 1" in text
