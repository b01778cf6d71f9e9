"""The template: a process that has imported what the workers need, and is forked for each of them.

Started by its path (`python -u .../template.py FD AGENT PADDING MODULE...`), so that nothing else of ours is
imported. Once ready it does one thing: an order arrives on the control socket, it forks, the fork becomes a
worker.

How a fork becomes the agent's child: the template forks a middle process, which forks the workers and ends.
The workers are orphans then and fall to the nearest subreaper above, the agent, so that it gets their exact
exit codes. They wait until the template has reaped the middle one, and only then ask for the parent-death
signal, which would otherwise fire with the middle one's end.

How a fork becomes what exec would have made of it: see `_become`. The last step is the bootstrap's, as in any
worker.
"""
# This file is run by its path and imports only what every Python program may have loaded anyway.
# ruff: noqa: PTH100, PTH109, PTH115, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FDS_MAX = 250
REQUEST_BYTES_MAX = 4096

#: What these import only at first use, which would cost every worker a second.
LAZY = {
    "torch": (
        "torch.distributed",
        "torch.nn.parallel.distributed",
        "torch.optim",
        "torch.utils.data",
        "torch._dynamo",
    ),
    "holdfast": ("holdfast.train.loop", "holdfast.train.membership", "holdfast.train.run", "holdfast.checkpoint"),
}
#: The same for a pair of them.
LAZY_BESIDE = {("torch", "holdfast"): ("holdfast.torch.run", "holdfast.torch.ddp")}


def main() -> None:
    """Preload, report, serve; only a forked worker returns from `_serve`, and becomes its program here."""
    control = socket.socket(fileno=int(sys.argv[1]))
    agent, modules = int(sys.argv[2]), sys.argv[4:]
    if not sys.flags.safe_path:
        del sys.path[0]  # our own folder
    sys.argv = [""]
    bootstrap = _load_bootstrap()
    began = time.monotonic()
    problem = _preload(modules)
    if not problem:
        gc.collect()
        gc.freeze()  # what is never collected is never written to, and stays shared with the workers
    gc.enable()
    _reply(control, problem=problem, seconds=time.monotonic() - began)
    if problem:
        sys.exit(1)
    order, fds = _serve(control, agent)
    _become(order, fds)
    bootstrap.run(order["kind"], order["target"], order["args"])


# -- getting ready -------------------------------------------------------------------------------------------


def _preload(modules: list[str]) -> str:
    """Import the modules; returns why this process cannot be forked, or an empty string."""
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may even exit
            return f"importing {name} failed: {type(error).__name__}: {error}"
        _import_lazy(LAZY.get(name, ()))
    for names, lazy in LAZY_BESIDE.items():
        if set(names) <= set(modules):
            _import_lazy(lazy)
    return _spoiled(modules)


def _import_lazy(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - another version of the library may not have it
            continue


def _spoiled(modules: list[str]) -> str:
    names = ", ".join(modules)
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return f"importing {names} left threads running ({', '.join(threads)}), which a fork would lose"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return f"importing {names} initialised CUDA, which cannot be used after a fork"
    if _holds_device():
        return f"importing {names} opened a GPU, which cannot be used after a fork"
    if _native_threads() > 1:
        # Some pools (OpenBLAS) know about forks: they end their threads before one and begin anew after it.
        pid = _fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        left = _native_threads() - 1
        if left:
            return f"importing {names} left {left} native threads that do not survive a fork"
    if any(_read(f"/proc/self/task/{task}/children") for task in os.listdir("/proc/self/task")):
        return f"importing {names} started other processes"
    return ""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _holds_device() -> bool:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            continue
    return False


# -- forking -------------------------------------------------------------------------------------------------


def _serve(control: socket.socket, agent: int) -> tuple[dict[str, Any], list[int]]:
    """Fork a gang for each request; returns only in the workers, with their order and descriptors."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, FDS_MAX)
        if not data:
            os._exit(0)  # the agent is gone
        with open(fds[0], "rb") as file:
            orders = json.load(file)
        stdio = [fds[1 + 3 * index : 4 + 3 * index] for index in range(len(orders))]
        index = _fork_gang(control, orders, agent)
        for number, group in enumerate(stdio):
            if number != index:
                for fd in group:
                    os.close(fd)
        if index is not None:
            control.close()
            return orders[index], stdio[index]


def _fork_gang(control: socket.socket, orders: list[dict[str, Any]], agent: int) -> int | None:
    """Fork the workers and report their pids; returns its index in a worker, None in the template."""
    pids_read, pids_write = os.pipe()
    go_read, go_write = os.pipe()
    middle = _fork()
    if middle == 0:
        for index in range(len(orders)):
            pid = _fork()
            if pid == 0:
                for fd in (pids_read, pids_write, go_write):
                    os.close(fd)
                _wait_for_parent(go_read, agent)
                return index
            os.write(pids_write, b"%d\n" % pid)
        os._exit(0)
    os.close(pids_write)
    os.waitpid(middle, 0)
    with open(pids_read, "rb") as file:
        pids = [int(line) for line in file]
    if len(pids) == len(orders):
        os.write(go_write, b"g" * len(pids))
        _reply(control, pids=pids)
    else:
        _reply(control, pids=pids, problem=f"only {len(pids)} of {len(orders)} workers could be forked")
    os.close(go_read)
    os.close(go_write)  # whoever has not got its letter ends now
    return None


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # we have looked at the threads ourselves
        return os.fork()


def _wait_for_parent(go: int, agent: int) -> None:
    """In the worker: wait until it is the agent's child, then tie its life to the agent's."""
    os.setsid()
    if os.read(go, 1) != b"g":
        os._exit(1)
    os.close(go)
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != agent:
        os._exit(1)


# -- becoming ------------------------------------------------------------------------------------------------


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """Take on all that exec would have set: streams, folder, environment, affinity, names."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if order["cpus"]:
        os.sched_setaffinity(0, order["cpus"])
    _write_names(order)
    _refresh_state()


def _write_names(order: dict[str, Any]) -> None:
    """Show the worker's own command line and gang token in /proc, where ps and the search for strays look."""
    fields = _read("/proc/self/stat").rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
    module = ["-m"] if order["kind"] == "module" else []
    words = [sys.executable, "-u", *module, order["target"], *order["args"]]
    line = b"\0".join(word.encode(errors="replace") for word in words)[: arg_end - arg_start - 1]
    ctypes.memmove(arg_start, line.ljust(arg_end - arg_start, b"\0"), arg_end - arg_start)
    slot = ctypes.string_at(env_start, env_end - env_start).find(b"HOLDFAST_GANG=")
    token = order["env"]["HOLDFAST_GANG"].encode()
    if slot >= 0:
        ctypes.memmove(env_start + slot + len(b"HOLDFAST_GANG="), token, len(token))


def _refresh_state() -> None:
    """Undo what processes forked from one template would otherwise share."""
    time.tzset()
    random.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)


def _reply(control: socket.socket, **content: object) -> None:
    try:
        control.send(json.dumps(content).encode())
    except OSError:
        os._exit(0)


def _load_bootstrap() -> ModuleType:
    """Load our neighbour by its path, as `__main__` of a worker that was executed would be."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap.py")
    module = type(sys)("_holdfast_bootstrap")
    module.__dict__.update(__file__=path, __loader__=globals()["__loader__"])
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)
    return module


if __name__ == "__main__":
    main()
