"""The reference of TorchElastic's agent: every class and member that it documents, and what it says of them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from holdfast import compat
from holdfast.wire.ports import HeldPort
from tests.seeds.conftest import Sandbox

AGENT = "torch.distributed.elastic.agent"
SERVER = f"{AGENT}.server"
HEALTH = f"{SERVER}.health_check_server"

#: What the page has Sphinx document: classes with their members, and functions.
DOCUMENTED = {
    (SERVER, "ElasticAgent"): "run get_worker_group",
    (SERVER, "WorkerSpec"): (
        "role local_world_size rdzv_handler fn entrypoint args max_restarts monitor_interval master_port master_addr "
        "local_addr event_log_handler numa_options duplicate_stdout_filters duplicate_stderr_filters "
        "virtual_local_rank get_entrypoint_name"
    ),
    (SERVER, "WorkerState"): "UNKNOWN INIT HEALTHY UNHEALTHY STOPPED SUCCEEDED FAILED is_running",
    (SERVER, "Worker"): "id local_rank global_rank role_rank world_size role_world_size",
    (SERVER, "WorkerGroup"): "spec workers store group_rank group_world_size state master_addr master_port",
    (f"{SERVER}.local_elastic_agent", "LocalElasticAgent"): "",
    (SERVER, "SimpleElasticAgent"): (
        "run get_worker_group get_event_failed get_event_succeeded record_duration _start_workers _stop_workers "
        "_monitor_workers _shutdown _rendezvous _assign_worker_ranks _initialize_workers _restart_workers "
        "_invoke_run _exit_barrier _construct_event"
    ),
    (f"{SERVER}.api", "RunResult"): "",
    (HEALTH, "HealthCheckServer"): "start stop",
    (HEALTH, "create_healthcheck_server"): "",
}

#: Where the programs below get their names.
NAMES = """
    import os
    import sys

    from torch.distributed.elastic.agent.server import *
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.agent.server.health_check_server import HealthCheckServer, create_healthcheck_server
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    def make_spec(entrypoint, *args, **settings):
        handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "run", 1, 1))
        return WorkerSpec(
            "trainer", 1, handler, entrypoint=entrypoint, args=args, **{"max_restarts": 0, **settings}
        )
"""


@pytest.fixture
def _asked() -> Iterator[None]:
    take_back = compat.install("torch")
    yield
    take_back()


def has(owner: Any, member: str) -> bool:
    """Whether a class has a name, or its objects will."""
    return hasattr(owner, member) or member in getattr(owner, "__dataclass_fields__", ())


@pytest.mark.usefixtures("_asked")
@pytest.mark.parametrize(("module", "name"), DOCUMENTED, ids=lambda text: text.rpartition(".")[2])
def test_what_the_reference_documents_is_there_and_has_a_docstring(module: str, name: str) -> None:
    documented = getattr(importlib.import_module(module), name)
    assert inspect.getdoc(documented)

    for member in DOCUMENTED[module, name].split():
        assert has(documented, member), member
        value = inspect.getattr_static(documented, member, None)
        if callable(value) or isinstance(value, property | staticmethod | classmethod):
            assert inspect.getdoc(getattr(documented, member)), member


@pytest.mark.usefixtures("_asked")
@pytest.mark.parametrize("module", [SERVER, HEALTH])
def test_the_modules_of_the_reference_say_what_they_are_for(module: str) -> None:
    importlib.import_module(AGENT)

    assert importlib.import_module(module).__doc__


@pytest.mark.usefixtures("_asked")
def test_what_an_agent_must_implement_is_what_the_reference_names() -> None:
    server = importlib.import_module(SERVER)

    assert server.ElasticAgent.__abstractmethods__ == {"run", "get_worker_group"}
    assert server.SimpleElasticAgent.__abstractmethods__ == {
        *("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")
    }
    assert [field.name for field in fields(importlib.import_module(f"{SERVER}.api").RunResult)] == [
        *("state", "return_values", "failures")
    ]


MY_AGENT = """
    import threading

    class MyAgent(SimpleElasticAgent):
        def _start_workers(self, worker_group):
            print("start", [worker.global_rank for worker in worker_group.workers])
            entrypoint = worker_group.spec.entrypoint
            self.threads = {w.local_rank: threading.Thread(target=entrypoint) for w in worker_group.workers}
            for thread in self.threads.values():
                thread.start()
            return {local_rank: thread.name for local_rank, thread in self.threads.items()}

        def _stop_workers(self, worker_group):
            print("stop")

        def _monitor_workers(self, worker_group):
            if any(thread.is_alive() for thread in self.threads.values()):
                return RunResult(WorkerState.HEALTHY)
            starts.append(1)
            return RunResult(WorkerState.FAILED if len(starts) == 1 else WorkerState.SUCCEEDED)

        def _shutdown(self, death_sig=15, timeout=30):
            print("shutdown", int(death_sig))

    starts = []
    result = MyAgent(make_spec(lambda: None, max_restarts=1)).run()
    print(result.state.name)
"""


def test_an_agent_that_extends_simple_elastic_agent_implements_four_methods(bare: Sandbox) -> None:
    bare.save("my_agent.py", NAMES, MY_AGENT)

    said = bare.run("python", "-m", "holdfast.compat", "my_agent.py")

    assert said.splitlines() == ["start [0]", "stop", "start [0]", "shutdown 15", "SUCCEEDED"]


def test_an_agent_may_implement_elastic_agent_directly(bare: Sandbox) -> None:
    bare.save("my_agent.py", NAMES, """
        class MyAgent(ElasticAgent):
            def __init__(self, spec):
                self.group = WorkerGroup(spec)

            def run(self, role="default"):
                values = {w.local_rank: self.group.spec.entrypoint() for w in self.get_worker_group(role).workers}
                return RunResult(WorkerState.SUCCEEDED, return_values=values)

            def get_worker_group(self, role="default"):
                return self.group

        print(MyAgent(make_spec(lambda: 7)).run().return_values)
    """)  # fmt: skip

    assert bare.run("python", "-m", "holdfast.compat", "my_agent.py") == "{0: 7}\n"


WATCHED = """
    import signal
    import stat

    import torch.distributed.elastic.timer as timer

    def train():
        path = os.environ["TORCHELASTIC_TIMER_FILE"]
        print(path, stat.S_ISFIFO(os.stat(path).st_mode), flush=True)
        timer.configure(timer.FileTimerClient(path))
        with timer.expires(after=60):
            pass
        with timer.expires(after=0.1):
            signal.pause()

    if __name__ == "__main__":
        result = LocalElasticAgent(make_spec(train)).run()
        print(result.is_failed(), result.failures[0].exitcode)
"""


@pytest.mark.parametrize("name", [None, "my_timer"])
def test_the_watchdog_ends_a_worker_whose_timer_expires(bare: Sandbox, name: str | None) -> None:
    environ = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    if name is not None:
        environ["TORCHELASTIC_TIMER_FILE"] = str(bare.folder / name)
    bare.save("my_launcher.py", NAMES, WATCHED)

    pipe, ended = bare.run("python", "-m", "holdfast.compat", "my_launcher.py", **environ).splitlines()

    path, is_pipe = pipe.split()
    assert is_pipe == "True"
    assert name is None or path == str(bare.folder / name)
    assert ended == "True -9"


def test_without_the_variable_there_is_no_watchdog(bare: Sandbox) -> None:
    bare.save("my_launcher.py", NAMES, """
        def train():
            return os.environ.get("TORCHELASTIC_TIMER_FILE")

        if __name__ == "__main__":
            print(LocalElasticAgent(make_spec(train)).run().return_values)
    """)  # fmt: skip

    assert bare.run("python", "-m", "holdfast.compat", "my_launcher.py") == "{0: None}\n"


ASKING = """
    from urllib.request import urlopen

    def train(port):
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            return answer.status
"""


def test_the_port_variable_starts_a_health_check_server_which_asks_the_watchdog_too(bare: Sandbox) -> None:
    bare.save("my_launcher.py", NAMES, ASKING, """
        if __name__ == "__main__":
            port = os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"]
            print(LocalElasticAgent(make_spec(train, port)).run().return_values)
    """)  # fmt: skip
    held = HeldPort()
    environ = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(held.port), "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}

    said = bare.run("python", "-m", "holdfast.compat", "my_launcher.py", **environ)
    held.close()

    assert said == "{0: 200}\n"


def test_a_health_check_server_can_be_extended(bare: Sandbox) -> None:
    bare.save("my_launcher.py", NAMES, """
        import time

        class MyServer(HealthCheckServer):
            def start(self):
                print("start", self._port, self._timeout, time.time() - self._alive_callback() < 60)

            def stop(self):
                print("stop")

        if __name__ == "__main__":
            server = MyServer(alive_callback=time.time, port=1234, timeout=60)
            agent = LocalElasticAgent(make_spec(int), health_check_server=server)
            print(agent.run().return_values)
    """)  # fmt: skip

    said = bare.run("python", "-m", "holdfast.compat", "my_launcher.py")

    assert said.splitlines() == ["start 1234 60 True", "stop", "{0: 0}"]


def test_create_healthcheck_server_makes_one_that_answers(bare: Sandbox) -> None:
    bare.save("serve.py", NAMES, ASKING, """
        import time

        server = create_healthcheck_server(alive_callback=lambda: int(time.time()), port=0, timeout=60)
        server.start()
        print(isinstance(server, HealthCheckServer), train(server.port))
        server.stop()
    """)  # fmt: skip

    assert bare.run("python", "-m", "holdfast.compat", "serve.py") == "True 200\n"
