"""The names by which programs reach the loop."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torchelastic


def test_the_loop_of_2019_needs_nothing_but_a_coordinator() -> None:
    class Alone(torchelastic.Coordinator):
        """One worker that meets nobody."""

        done = False

        def rendezvous_barrier(self) -> tuple[Any, int, int]:
            return None, 0, 1

        def barrier(self) -> None: ...
        def init_process_group(self) -> None: ...
        def should_save_checkpoint(self) -> bool:
            return False

        def should_rendezvous(self, state: torchelastic.State) -> bool:
            return False

        def should_stop_training(self) -> bool:
            return self.done

        def signal_training_done(self) -> None:
            self.done = True

        def monitor_progress(
            self, state: torchelastic.State, worker_stats: torchelastic.WorkerStats | None
        ) -> None: ...
        def report_progress(self, state: torchelastic.State) -> None: ...
        def on_error(self, e: Exception) -> None: ...

    class Count(torchelastic.State):
        value = 0

    def step(state: Count) -> tuple[Count, None]:
        if state.value == 3:
            raise StopIteration
        state.value += 1
        return state, None

    assert torchelastic.train(Alone(), step, Count()).value == 3


def test_every_name_can_be_had_and_nothing_is_imported_before() -> None:
    code = """
import sys, holdfast
assert not [name for name in sys.modules if name.startswith("holdfast.")], sys.modules
for name in holdfast.__all__:
    getattr(holdfast, name)
from holdfast.train.run import Run
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
