"""Programs that train tell their facts, each of them once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os

from holdfast import worker_telemetry, metrics
from holdfast.agent import LocalElasticAgent, WorkerSpec
from holdfast.compat.torchelastic.checkpoint import FileSystemCheckpointManager
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler

def save():
    FileSystemCheckpointManager("checkpoints").create_checkpoint().commit()

class Naming(metrics.MetricHandler):
    def emit(self, metric_data):
        os.write(1, f"{metric_data.name}\\n".encode())  # in one piece: the worker and other threads write here, too

metrics.configure(Naming(), group="torchelastic")
save()
handler = get_rendezvous_handler(RendezvousParameters("holdfast", "localhost:0", "run", 1, 1))
spec = WorkerSpec(entrypoint=save, rdzv_handler=handler)
LocalElasticAgent(spec, start_method="fork").run()
save()
handler.shutdown()
"""


def test_each_fact_is_told_once_wherever_an_agent_runs_in_the_program_that_trains(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    told = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert told.count("workers.start_ms") == 1
    # Before the agent, in the worker that was forked from it, and after it.
    assert told.count("checkpoint.write_latency_ms") == 3
