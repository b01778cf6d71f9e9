"""A program that prints what people match on: run with TorchElastic's modules and with ours, it prints the same."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed.argparse_util import check_env, env
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerState, _RoleInstanceInfo
from torch.distributed.elastic.events import Event, EventSource, NodeState, RdzvEvent
from torch.distributed.elastic.metrics import MetricData
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException, Std, to_map
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ErrorHandler, ProcessFailure, record
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandlerRegistry,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from torch.distributed.elastic.timer import FileTimerRequest, TimerRequest, expires
from torch.distributed.elastic.utils import get_env_variable_or_raise, macros
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, parse_args, parse_min_max_nnodes

FOLDER = Path(sys.argv[1])


def error(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The kinds of error that callers may catch, without our own."""
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except Exception as raised:  # noqa: BLE001 - which one it is is what is shown
        known = [each.__name__ for each in type(raised).__mro__ if each.__module__ == "builtins"]
        ours = [each.__name__ for each in type(raised).__mro__ if each.__name__.startswith("Rendezvous")]
        return " ".join([*ours, *(each for each in known if each not in ("object", "BaseException", "Exception"))])


def failures() -> dict[int, ProcessFailure]:
    nested = {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback:\n  File\nx", "timestamp": "123"}}
    (FOLDER / "nested.json").write_text(json.dumps({"message": nested}))
    (FOLDER / "plain.json").write_text(json.dumps({"message": "plain", "timestamp": 5}))
    return {
        3: ProcessFailure(0, 11, 1, str(FOLDER / "nested.json")),
        4: ProcessFailure(1, 12, 2, str(FOLDER / "plain.json")),
        5: ProcessFailure(2, 13, -9, "/nowhere"),
    }


def show() -> None:
    many = failures()
    many[5].timestamp = 200
    print(ChildFailedError("train.py", many))
    print(ChildFailedError("train.py", {0: many[4]}))
    print(ChildFailedError("train.py", many).get_first_failure()[0], many[5].message, many[4], many[5].signal_name())

    print(WorkerState.HEALTHY.value, [state.name for state in WorkerState], WorkerState.is_running(WorkerState.HEALTHY))
    print(Worker(1, 2, 3, 4, 5), RunResult(WorkerState.FAILED), RunResult(WorkerState.FAILED).is_failed())
    info = _RoleInstanceInfo("trainer", 1, 2)
    print(info.serialize(), _RoleInstanceInfo.deserialize(info.serialize()).role)

    event = Event("name", EventSource.AGENT, 5, {"a": 1, "b": None})
    print(event.serialize(), Event.deserialize(event.serialize()) == event, str(event), EventSource.WORKER.value)
    rdzv = RdzvEvent("n", "run", "m", "h", 1, NodeState.INIT)
    print(rdzv.serialize(), [state.name for state in NodeState])
    print(MetricData(1, "group", "name", 2))

    for text in ("0", "3", "0:1,1:2"):
        print(Std.from_str(text))
    print(to_map({0: Std.OUT}, 3), LogsDest(), list(Std), Std.OUT | Std.ERR, Std.ALL & Std.OUT)
    raised = SignalException("text", signal.SIGTERM)
    print(repr(raised.sigval), str(raised))
    print(TimerRequest("w", "s", 3.5) == TimerRequest("w", "s", 3.5))
    print(json.loads(FileTimerRequest(1, "s", 2.5, 9).to_json()))

    print(RendezvousStoreInfo("host", 1), RendezvousStoreInfo.MASTER_ADDR_KEY)
    params = RendezvousParameters("b", "e", "r", 1, 2, a="1", b="no", c="x")
    print(
        params.get("a"),
        params.get_as_int("a"),
        params.get_as_bool("b"),
        params.get_as_bool("z", True),
        params.local_addr,
    )
    print([each.__bases__[0].__name__ for each in (RendezvousClosedError, RendezvousConnectionError)])
    print(
        parse_rendezvous_endpoint("host", 5), parse_rendezvous_endpoint("[::1]:7", 5), parse_rendezvous_endpoint("", 5)
    )
    print(_parse_rendezvous_config("a=1, b=2"), parse_min_max_nnodes("2:4"), parse_min_max_nnodes("3"))
    times = RendezvousTimeout(timedelta(seconds=1))
    print(times.join, times.last_call, times.close, times.heartbeat)
    print(macros.substitute(["x", "--r=${local_rank}"], "3"), macros.local_rank)

    config = LaunchConfig(1, 2, 3)
    print(config.role, config.max_restarts, config.monitor_interval, config.start_method, config.signals_to_handle)
    os.environ["PET_MAX_RESTARTS"] = "4"
    args = parse_args(
        ["--nnodes=1:2", "--nproc_per_node", "2", "--rdzv_id=7", "--rdzv-conf", "a=1", "x.py", "-v", "--a"]
    )
    print(
        args.nnodes,
        args.nproc_per_node,
        args.rdzv_id,
        args.max_restarts,
        args.training_script,
        args.training_script_args,
    )
    (FOLDER / "x.py").touch()
    made, command, words = config_from_args(
        parse_args(["--nnodes=1:2", "--rdzv-backend=c10d", str(FOLDER / "x.py"), "-v"])
    )
    print(made.min_nodes, made.max_nodes, made.nproc_per_node, made.run_id, made.rdzv_backend, made.role)
    print(made.max_restarts, command == sys.executable, words[0], words[-2:])

    print(error(RendezvousParameters, "", "e", "r", 1, 1), error(RendezvousParameters, "b", "e", "r", 0, 1))
    print(
        error(RendezvousParameters, "b", "e", "r", 2, 1), error(params.get_as_int, "c"), error(params.get_as_bool, "c")
    )
    print(
        error(RendezvousHandlerRegistry().create_handler, params),
        error(RendezvousHandlerRegistry().register, "", print),
    )
    print(
        error(Std.from_str, "9"),
        error(parse_rendezvous_endpoint, "a:b:c", 1),
        error(parse_rendezvous_endpoint, "h:x", 1),
    )
    print(error(_parse_rendezvous_config, "a"), error(RendezvousTimeout, timedelta(0)))
    print("RuntimeError" in error(expires(1).__enter__))
    print(error(get_env_variable_or_raise, "NOWHERE_TO_BE_FOUND"))
    print(issubclass(RendezvousTimeoutError, RendezvousError), check_env.__name__, env.__name__)


def show_files() -> None:
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(FOLDER / "error.json")

    @record
    def fails() -> None:
        raise KeyError("x")

    try:
        fails()
    except KeyError:
        data = json.loads((FOLDER / "error.json").read_text())["message"]
        print(sorted(data), data["message"], sorted(data["extraInfo"]), data["extraInfo"]["timestamp"].isdigit())
    (FOLDER / "error.json").unlink()
    ErrorHandler().dump_error_file(str(FOLDER / "nested.json"), 7)
    print((FOLDER / "error.json").read_text())

    specs = DefaultLogsSpecs(str(FOLDER / "logs"), Std.ALL, {0: Std.OUT}, {0})
    env = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "1"}
    dest = specs.reify({0: env, 1: env})
    for each in (dest.stdouts, dest.stderrs, dest.tee_stdouts, dest.tee_stderrs, dest.error_files):
        print({rank: "/".join(path.split("/")[-3:]) for rank, path in each.items()})
    print([Path(path).name for path in (dest.filtered_stdout, dest.filtered_stderr)])
    print([path.name.startswith("run_") for path in (FOLDER / "logs").iterdir()])
    group = WorkerGroup.__slots__
    print(sorted(group), pickle.loads(pickle.dumps(Std.OUT)) is Std.OUT)


if __name__ == "__main__":
    show()
    show_files()
