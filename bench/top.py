"""Captures `holdfast top` under tmux at 80x24 while a worker is killed, and writes it into docs/howto/observe-a-run.md.

python -m bench.top            needs tmux
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "observe-a-run.md"
RUN = "train-x7k2m"
OPTIONS = ("--nproc-per-node", "4", "--max-restarts", "3", "--rdzv-id", RUN)
PATIENCE_S = 60.0

_TRAINING = """
import time
import numpy as np
import holdfast

inputs = np.random.default_rng(0).normal(size=(960, 4))
wanted = inputs @ np.array([1.0, 2.0, 3.0, 4.0])
state = holdfast.NumpyState(weights=np.zeros(4))
with holdfast.elastic(state) as run:
    for step in run.steps(samples=len(inputs), batch=96, micro_batch=8, epochs=EPOCHS):
        with step:
            time.sleep(STEP_S)
            for micro in step.micro_batches:
                chosen = list(micro.indices)
                step.add(2 * (inputs[chosen] @ state.weights - wanted[chosen]) @ inputs[chosen])
            state.weights -= 0.1 * step.total() / step.samples
"""


def training(epochs: int, step_s: float) -> str:
    """Return a script that trains for so many epochs of ten steps, each of which takes so long at least."""
    return _TRAINING.replace("EPOCHS", str(epochs)).replace("STEP_S", str(step_s))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_HOME"] = folder
        script = Path(folder) / "train.py"
        script.write_text(training(10_000, 0.02))
        launch = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "launch", *OPTIONS, "--log-dir", folder, str(script)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        tmux = ["tmux", "-L", f"holdfast-{os.getpid()}"]
        try:
            wait(lambda: "steps/s" in once())
            top = shlex.join([sys.executable, "-m", "holdfast", "top", RUN])
            subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", top], check=True)
            time.sleep(12)  # a run of some age looks like one
            os.kill(pid_of(2), signal.SIGKILL)
            wait(lambda: "replaced rank 2" in screen(tmux))
            time.sleep(2)
            write(screen(tmux))
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
            launch.terminate()
            launch.wait()


def once() -> str:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "top", "--once"], capture_output=True, text=True, check=False
    ).stdout


def screen(tmux: list[str]) -> str:
    return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout.rstrip()


def pid_of(rank: int, run: str = RUN) -> int:
    """Return the process of a rank of a run, or of the latest one."""
    lines = subprocess.run(
        [sys.executable, "-m", "holdfast", "events", *([run] if run else []), "--json", "--kind", "workers_started"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pid: int = json.loads(lines.splitlines()[-1])["data"]["pids"][rank]
    return pid


def wait(condition: object) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            raise SystemExit("the run did not come that far in time")
        time.sleep(0.2)


def write(text: str) -> None:
    block = f"<!-- top -->\n```\n{text}\n```\n<!-- /top -->"
    page = re.sub(r"<!-- top -->.*<!-- /top -->", lambda _: block, PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
