"""Customization of torchelastic 0.2: a launcher, a rendezvous handler and a metric handler of one's own."""

from __future__ import annotations

from textwrap import indent

import pytest

from tests.seeds.conftest import Sandbox, fill, needs_torch

MYLAUNCHER = """
    # mylauncher.py

    spec = WorkerSpec(
        local_world_size=nproc_per_node,
        fn=trainer_entrypoint_fn,
        args=(trainer_entrypoint_fn args,...),
        rdzv_handler=rdzv_handler,
        max_restarts=max_restarts,
        monitor_interval=monitor_interval,
    )
    metrics.initialize_metrics()

    elastic_agent = LocalElasticAgent(spec, start_method=start_method)
    try:
        elastic_agent.run(spec.role)
    except Exception ex:
        # handle exception
"""

MYRDZV = """
    # filename: myrdzv.py

    class MyRendezvousHandler(RendezvousHandler):

        def next_rendezvous(self) -> Tuple["torch.distributed.Store", int, int]:
            # Using the synchronization procedure that is common among all the agents
            # agree on the ranks and return the common storage
        ...
"""

WITH_MY_HANDLER = """
    spec = WorkerSpec(
        rdzv_handler=MyRendezvousHandler(params),
        ...
    )
    elastic_agent = LocalElasticAgent(spec, start_method=start_method)
    elastic_agent.run(spec.role)
"""

MYMETRICS = """
    # filename mymetrics.py

    import torchelastic.metrics as metrics


    class MyMetricHandler(metrics.MetricHandler):
        def emit(self, metric_data: metrics.MetricData):
            # Emit metrics
"""

WITH_MY_METRICS = """
    spec = # init spec
    metrics.initialize_metrics()
    metrics.configure(mymetrics.MyMetricHandler())
    # run elastic agent
"""

#: What the snippets leave to the reader: where their names come from, and their values.
NAMES = """
    import sys

    from torchelastic import metrics
    from torchelastic.agent.server.api import WorkerSpec
    from torchelastic.agent.server.local_elastic_agent import LocalElasticAgent
    from trainer import trainer_entrypoint_fn

    nproc_per_node, start_method = int(sys.argv[1]), sys.argv[2]
    max_restarts, monitor_interval = 1, 0.1
"""

OUR_RENDEZVOUS = """
    from torchelastic.rendezvous import RendezvousParameters
    from torchelastic.rendezvous.registry import get_rendezvous_handler

    rdzv_handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "run", 1, 1))
"""

TRAINER = """
    import os

    def trainer_entrypoint_fn(word):
        print(f"{word} from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
"""

ARGUMENTS = ("trainer_entrypoint_fn args,...", '"hello",')
EXCEPTION = ("except Exception ex:\n    # handle exception", 'except Exception as ex:\n    print(f"handled: {ex}")')
THE_OTHERS = (
    "    ...\n",
    '    local_world_size=nproc_per_node,\n    fn=trainer_entrypoint_fn,\n    args=("hello",),\n',
)
HELLO_FROM_TWO = ["hello from rank 0 of 2", "hello from rank 1 of 2"]

#: The rest of the interface, which the document leaves out.
THE_REST = """
    def get_backend(self):
        return "mine"

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return "run"

    def shutdown(self):
        return True
"""
FINISHED = ("    ...\n", THE_REST)
COMMENT = """        # agree on the ranks and return the common storage
"""


def answering(next_rendezvous: str) -> str:
    """The handler's module, with a method that does this."""
    handler = fill(MYRDZV, (COMMENT, f"{COMMENT}        {next_rendezvous}\n"), FINISHED)
    names = "from typing import Tuple\nfrom torchelastic.rendezvous import RendezvousHandler\n"
    return f"{names}{handler}"


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_launcher_of_ones_own_is_a_module_to_run(sandbox: Sandbox, start_method: str) -> None:
    launcher = fill(MYLAUNCHER, ARGUMENTS, EXCEPTION)
    if start_method == "spawn":  # whose workers import the launcher
        launcher = 'if __name__ == "__main__":\n' + indent(launcher, "    ")
    sandbox.save("trainer.py", TRAINER)
    sandbox.save("mylauncher.py", NAMES, OUR_RENDEZVOUS, launcher)

    said = sandbox.run("python", "-m", "mylauncher", "2", start_method)

    assert sorted(said.splitlines()) == HELLO_FROM_TWO


def test_what_the_rendezvous_raises_can_be_handled_in_the_launcher(sandbox: Sandbox) -> None:
    sandbox.save("myrdzv.py", answering("raise RuntimeError('no ranks today')"))
    sandbox.save("trainer.py", TRAINER)
    sandbox.save(
        "mylauncher.py",
        NAMES,
        "from myrdzv import MyRendezvousHandler",
        "rdzv_handler = MyRendezvousHandler()",
        fill(MYLAUNCHER, ARGUMENTS, EXCEPTION),
    )

    assert sandbox.run("python", "-m", "mylauncher", "2", "fork") == "handled: no ranks today\n"


def test_a_handler_of_ones_own_returns_a_store_a_rank_and_a_world_size(sandbox: Sandbox) -> None:
    sandbox.save("trainer.py", TRAINER)
    sandbox.save("myrdzv.py", "from holdfast.store import MemoryStore", answering("return MemoryStore(), 0, 1"))
    sandbox.save("mylauncher.py", NAMES, "from myrdzv import *", fill(WITH_MY_HANDLER, ("params", ""), THE_OTHERS))

    assert sorted(sandbox.run("python", "-m", "mylauncher", "2", "fork").splitlines()) == HELLO_FROM_TWO


def test_a_node_that_waits_makes_the_agent_meet_again(sandbox: Sandbox) -> None:
    """The workers of the first round wait for ever; only the handler's word can end it."""
    sandbox.save("trainer.py", """
        import os, signal

        def trainer_entrypoint_fn(word):
            if os.environ["TORCHELASTIC_RUN_ID"] == "run 1":
                signal.pause()
            print(word, "in", os.environ["TORCHELASTIC_RUN_ID"], flush=True)
    """)  # fmt: skip
    counted = (
        answering("self.rounds += 1; return MemoryStore(), 0, 1")
        .replace("def get_backend", "rounds = 0\n\n    def get_backend")
        .replace("return 0\n", "return int(self.rounds == 1)\n")
        .replace('return "run"', 'return f"run {self.rounds}"')
    )
    sandbox.save("myrdzv.py", "from holdfast.store import MemoryStore", counted)
    sandbox.save("mylauncher.py", NAMES, "from myrdzv import *", fill(WITH_MY_HANDLER, ("params", ""), THE_OTHERS))

    assert sandbox.run("python", "-m", "mylauncher", "1", "fork") == "hello in run 2\n"


@needs_torch
@pytest.mark.torch
def test_agents_on_two_nodes_meet_in_a_store_of_torch(sandbox: Sandbox) -> None:
    """The common procedure is to count who comes, in a file that all nodes see."""
    store = "torch.distributed.FileStore('store', 2)"
    sandbox.save("trainer.py", TRAINER)
    sandbox.save("myrdzv.py", "import torch", answering(f"store = {store}; return store, store.add('nodes', 1) - 1, 2"))
    sandbox.save("mylauncher.py", NAMES, "from myrdzv import *", fill(WITH_MY_HANDLER, ("params", ""), THE_OTHERS))
    nodes = [sandbox.start("python", "-m", "mylauncher", "1", "fork") for _ in range(2)]

    said = [node.communicate() for node in nodes]

    assert sorted(out for out, _ in said) == [f"{line}\n" for line in HELLO_FROM_TWO], said


def test_a_metric_handler_of_ones_own_is_told_of_the_platform(sandbox: Sandbox) -> None:
    in_memory = "# Emit metrics\n        stored.append((metric_data.group_name, metric_data.name))"
    sandbox.save("trainer.py", TRAINER)
    sandbox.save("mymetrics.py", "stored = []", fill(MYMETRICS, ("# Emit metrics", in_memory)))
    spec = 'WorkerSpec(fn=trainer_entrypoint_fn, args=("hello",), rdzv_handler=rdzv_handler)'
    run = "LocalElasticAgent(spec, start_method=start_method).run(spec.role)"
    sandbox.save(
        "mylauncher.py",
        NAMES,
        "import mymetrics",
        OUR_RENDEZVOUS,
        fill(WITH_MY_METRICS, ("# init spec", spec), ("# run elastic agent", run)),
        "for metric in mymetrics.stored: print(*metric)",
    )

    lines = sandbox.run("python", "-m", "mylauncher", "1", "fork").splitlines()

    assert lines[0] == "hello from rank 0 of 1"
    assert {"torchelastic rendezvous.duration_ms", "torchelastic workers.default.run_success_no_retries"} < set(
        lines[1:]
    )
