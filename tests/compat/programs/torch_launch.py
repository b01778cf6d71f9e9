"""Launching: what returns, what raises, and what workers find."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launch import main as launch
from torch.distributed.launcher.api import LaunchConfig, _get_addr_and_port, _get_entrypoint_name, elastic_launch
from torch.distributed.run import (
    _get_logs_specs_class,
    config_from_args,
    determine_local_world_size,
    parse_args,
    parse_min_max_nnodes,
)
from torch.distributed.run import main as run

HERE = Path.cwd()
WORKER = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
value = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(value)
if dist.get_rank() == 0:
    open("sum", "a").write(f"{value.item()} of {dist.get_world_size()}\\n")
dist.destroy_process_group()
"""


def raises(kind: type[BaseException], call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except kind:
        return kind.__name__


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return int(sock.getsockname()[1])


def show_main() -> None:
    Path("fails.py").write_text("raise ValueError('why')\n")
    Path("works.py").write_text("import sys; open('ran', 'a').write('x')\n")
    for main in (run, launch):
        print(
            raises(SystemExit, main, ["--standalone", "works.py"]),
            raises(ChildFailedError, main, ["--standalone", "fails.py"]),
        )
        print(raises(ValueError, main, ["--nnodes", "many", "works.py"]))
        print(raises(SystemExit, main, ["--no-such-flag", "works.py"]))
    print(Path("ran").read_text())


def show_init_methods() -> None:
    Path("worker.py").write_text(WORKER)
    for flags, method in (
        (["--master-addr", "localhost"], "tcp://localhost:{port}"),
        (["--master-addr", "127.0.0.1"], "env://"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:{port}"], "env://"),
    ):
        port = free_port()
        flags = [flag.format(port=port) for flag in flags] + (
            [f"--master-port={port}"] if "--master-addr" in flags else []
        )
        run([*flags, "--nproc-per-node", "2", "worker.py", method.format(port=port)])
        print(Path("sum").read_text().splitlines()[-1])


def show_helpers() -> None:
    print(parse_min_max_nnodes("1:2"), raises(RuntimeError, parse_min_max_nnodes, "1:2:3"))
    print(
        determine_local_world_size("2"),
        determine_local_world_size("cpu") > 0,
        raises(ValueError, determine_local_world_size, "nonsense"),
    )
    print(_get_entrypoint_name(show_helpers, []), _get_entrypoint_name("/usr/bin/python", ["-u", "x.py", "--a"]))
    print(_get_entrypoint_name(sys.executable, ["-u", "-m", "module"]), _get_entrypoint_name("/bin/ls", []))
    static = RendezvousParameters("static", "host:123", "run", 1, 1)
    print(_get_addr_and_port(static), _get_addr_and_port(RendezvousParameters("c10d", "host:123", "run", 1, 1)))
    print(raises(ValueError, _get_addr_and_port, RendezvousParameters("static", "", "run", 1, 1)))
    print(_get_logs_specs_class(None).__name__, raises(ValueError, _get_logs_specs_class, "no-such"))


def work(rank: int) -> str:
    return f"{rank} {os.environ['RANK']}"


def show_functions() -> None:
    config = LaunchConfig(
        1, 1, nproc_per_node=2, run_id="r", rdzv_backend="c10d", rdzv_endpoint="localhost:0", monitor_interval=0.1
    )
    print(sorted(elastic_launch(config, work)(5).items()))
    args = parse_args(
        ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-conf", "no_such_key=1,join_timeout=5", "works.py"]
    )
    made, _, _ = config_from_args(args)
    print([made.rdzv_configs.get(key) for key in ("no_such_key", "join_timeout")])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    show_main()
    show_init_methods()
    show_helpers()
    show_functions()
