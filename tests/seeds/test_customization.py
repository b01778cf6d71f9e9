"""Customization of TorchElastic as a part of torch: a launcher, and handlers of rendezvous, metrics and events.

The programs run under `python -m holdfast.compat`, which lets `torch.distributed.elastic` lead to Holdfast, whether
torch is installed or not.
"""

from __future__ import annotations

import pytest

from tests.seeds.conftest import Sandbox, fill, needs_torch

MY_LAUNCHER = """
  # my_launcher.py

  if __name__ == "__main__":
    args = parse_args(sys.argv[1:])
    rdzv_handler = RendezvousHandler(...)
    spec = WorkerSpec(
        local_world_size=args.nproc_per_node,
        fn=trainer_entrypoint_fn,
        args=(trainer_entrypoint_fn args.fn_args,...),
        rdzv_handler=rdzv_handler,
        max_restarts=args.max_restarts,
        monitor_interval=args.monitor_interval,
    )

    agent = LocalElasticAgent(spec, start_method="spawn")
    try:
        run_result = agent.run()
        if run_result.is_failed():
            print(f"worker 0 failed with: run_result.failures[0]")
        else:
            print(f"worker 0 return value is: run_result.return_values[0]")
    except Exception ex:
        # handle exception
"""

WITH_MY_HANDLER = """
    spec = WorkerSpec(
        rdzv_handler=MyRendezvousHandler(params),
        ...
    )
    elastic_agent = LocalElasticAgent(spec, start_method=start_method)
    elastic_agent.run(spec.role)
"""

METRIC_HANDLER = """
  # my_launcher.py

  import torch.distributed.elastic.metrics as metrics

  class MyMetricHandler(metrics.MetricHandler):
      def emit(self, metric_data: metrics.MetricData):
          # push metric_data to your metric sink

  def main():
    metrics.configure(MyMetricHandler())

    spec = WorkerSpec(...)
    agent = LocalElasticAgent(spec)
    agent.run()
"""

EVENT_HANDLER = """
  # my_launcher.py

  import torch.distributed.elastic.events as events

  class MyEventHandler(events.EventHandler):
      def record(self, event: events.Event):
          # process event

  def main():
    events.configure(MyEventHandler())

    spec = WorkerSpec(...)
    agent = LocalElasticAgent(spec)
    agent.run()
"""

#: What the snippets leave to the reader: where their names come from, and a worker.
NAMES = """
    import argparse
    import os
    import sys

    from torch.distributed.elastic.agent.server import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    def trainer_entrypoint_fn(factor):
        return factor * (10 + int(os.environ["RANK"]))

    def parse_args(words):
        parser = argparse.ArgumentParser()
        parser.add_argument("--nproc_per_node", type=int, default=1)
        parser.add_argument("--max_restarts", type=int, default=0)
        parser.add_argument("--monitor_interval", type=float, default=0.1)
        parser.add_argument("--fn_args", type=eval, default=3)
        return parser.parse_args(words)
"""

#: One node alone.
MY_HANDLER = """
    class MyRendezvousHandler(RendezvousHandler):
        def __init__(self, params=None):
            self.params = params

        def get_backend(self):
            return "mine"

        def next_rendezvous(self):
            from holdfast.store import MemoryStore

            return {result}

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

OURS = 'get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "run", 1, 1))'
RESULTS = {"a tuple": "MemoryStore(), 0, 1", "an info": "RendezvousInfo(MemoryStore(), 0, 1, None)"}
ARGUMENTS = ("trainer_entrypoint_fn args.fn_args,...", "args.fn_args,")
EXCEPTION = ("except Exception ex:\n      # handle exception", 'except Exception as ex:\n      print(f"handled: {ex}")')
BRACED = (
    ("run_result.failures[0]", "{run_result.failures[0]}"),
    ("run_result.return_values[0]", "{run_result.return_values[0]}"),
)
SPEC = f"WorkerSpec(local_world_size=2, fn=trainer_entrypoint_fn, args=(3,), rdzv_handler={OURS})"
CALL_MAIN = 'if __name__ == "__main__":\n    main()'


def launcher(*filled: tuple[str, str]) -> str:
    """The launcher, on the rendezvous that one gets by the name of torchrun's."""
    return fill(MY_LAUNCHER, ("RendezvousHandler(...)", OURS), ARGUMENTS, EXCEPTION, *filled)


def run(sandbox: Sandbox, *arguments: str) -> list[str]:
    return sandbox.run("python", "-m", "holdfast.compat", "my_launcher.py", *arguments).splitlines()


def test_the_launcher_prints_what_stands_there(bare: Sandbox) -> None:
    """The strings have no braces, so the document's own words are what it prints."""
    bare.save("my_launcher.py", NAMES, launcher())

    assert run(bare) == ["worker 0 return value is: run_result.return_values[0]"]
    assert run(bare, "--fn_args", "None") == ["worker 0 failed with: run_result.failures[0]"]


def test_the_result_of_the_launcher_has_return_values_and_failures_by_rank(bare: Sandbox) -> None:
    bare.save("my_launcher.py", NAMES, launcher(*BRACED))

    assert run(bare, "--nproc_per_node", "2") == ["worker 0 return value is: 30"]
    (failed,) = run(bare, "--fn_args", "None")
    assert failed.startswith("worker 0 failed with: ProcessFailure(local_rank=0, ")
    assert "TypeError: unsupported operand" in failed


@needs_torch
@pytest.mark.torch
def test_the_launcher_runs_as_a_module_and_with_torch(sandbox: Sandbox) -> None:
    """Ours answers to the names below torch, which is itself and whole."""
    check = "import torch.nn\nassert torch.distributed.Store and WorkerSpec.__module__ == 'holdfast.agent.api'"
    sandbox.save("my_launcher.py", NAMES, check, launcher(*BRACED))

    said = sandbox.run("python", "-m", "holdfast.compat", "-m", "my_launcher")

    assert said == "worker 0 return value is: 30\n"


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_rendezvous_handler_of_ones_own_is_given_to_the_spec(bare: Sandbox, result: str) -> None:
    others = "local_world_size=2,\n    entrypoint=trainer_entrypoint_fn,\n    args=(3,),"
    given = fill(
        WITH_MY_HANDLER,
        ("params", '{"nodes": 1}'),
        ("...", others),
        ("start_method=start_method", 'start_method="fork"'),
        ("elastic_agent.run(spec.role)", "print(elastic_agent.run(spec.role).return_values)"),
    )
    bare.save("my_launcher.py", NAMES, MY_HANDLER.format(result=result), given)

    assert run(bare) == ["{0: 30, 1: 33}"]


def test_an_exception_of_the_rendezvous_can_be_handled(bare: Sandbox) -> None:
    mine = MY_HANDLER.format(result="1 / 0")
    program = fill(MY_LAUNCHER, ("RendezvousHandler(...)", "MyRendezvousHandler()"), ARGUMENTS, EXCEPTION)
    bare.save("my_launcher.py", NAMES, mine, program)

    assert run(bare) == ["handled: division by zero"]


def test_a_metric_handler_of_ones_own_is_pushed_the_metrics_of_the_platform(bare: Sandbox) -> None:
    sink = "# push metric_data to your metric sink"
    push = f"{sink}\n        print(metric_data.group_name, metric_data.name)"
    bare.save("my_launcher.py", NAMES, fill(METRIC_HANDLER, (sink, push), ("WorkerSpec(...)", SPEC)), CALL_MAIN)

    pushed = run(bare)

    assert {"torchelastic rendezvous.duration_ms", "torchelastic workers.default.run_success_no_retries"} < set(pushed)


def test_by_default_metrics_and_events_go_nowhere(bare: Sandbox) -> None:
    without = ("metrics.configure(MyMetricHandler())", "pass")
    silent = fill(
        METRIC_HANDLER, ("# push metric_data to your metric sink", "raise"), without, ("WorkerSpec(...)", SPEC)
    )
    check = """
        from torch.distributed.elastic.events import EventHandler, NullEventHandler

        assert issubclass(NullEventHandler, EventHandler)
    """
    bare.save("my_launcher.py", NAMES, silent, check, CALL_MAIN)

    assert run(bare) == []


def test_an_event_handler_of_ones_own_records_the_events_of_the_agent(bare: Sandbox) -> None:
    process = "# process event\n        print(type(event).__name__, event.name, event.source.name)"
    bare.save(
        "my_launcher.py",
        NAMES,
        fill(EVENT_HANDLER, ("# process event", process), ("WorkerSpec(...)", SPEC)),
        CALL_MAIN,
    )

    recorded = run(bare)

    assert "Event torchelastic.worker.status.SUCCEEDED AGENT" in recorded
    assert recorded.count("Event torchelastic.worker.status.SUCCEEDED WORKER") == 2
