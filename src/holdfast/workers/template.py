"""The template: a process that has imported the workers' modules, and is forked for each of them.

Started by its path (`python -u .../template.py FD AGENT PADDING MODULE...`), so that nothing else of ours is
imported. Once ready it does one thing: an order arrives on the control socket, it forks, the fork becomes a
worker. A keeper (see `keeper.py`) also asks whether what was imported is still what lies on disk. A
standby is a fork that gets its order later, see `template_standby.py`.

How a fork becomes the agent's child: the template forks a middle process, which forks the workers and ends.
The workers are orphans then and fall to the nearest subreaper above, the agent, so that it gets their exact
exit codes.

How a fork begins: the agent alone says so. Every order brings the read end of a pipe. The worker waits until the agent,
which has heard of its pid, writes a letter for it. An agent that has stopped waiting for this template closes
the pipe without one, and the worker ends: however late a fork comes, it never runs beside the worker that was started
in its place. Only then does the worker ask for the parent-death signal, which would otherwise fire with the
middle process's end.

How a fork becomes what exec would have made of it: see `template_become.py`. The last step is the bootstrap's, as in
any worker.
"""
# This file is run by its path and imports only what every Python program may have loaded anyway.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123

from __future__ import annotations

import sys

_AT_START = frozenset(sys.modules)  # what a Python process has loaded before its script begins

import ctypes  # noqa: E402 - only after the line above
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FDS_MAX = 250
REQUEST_BYTES_MAX = 4096
#: How often a worker that waits for its letter looks whether its agent still lives.
LOOK_S = 1.0


def main() -> None:
    """Preload, report, serve; only a forked worker returns from `_serve`, and becomes its program here."""
    control = socket.socket(fileno=int(sys.argv[1]))
    agent, modules = int(sys.argv[2]), sys.argv[4:]
    if not sys.flags.safe_path:
        del sys.path[0]  # our own folder
    sys.argv = [""]
    bootstrap, becoming = _load("bootstrap"), _load("template_become")
    importing = _load("template_imports")
    imports = importing.Imports(_AT_START)
    gc.disable()
    imports.run(modules)
    if not imports.problem:
        gc.collect()
        gc.freeze()  # what is never collected is never written to, and stays shared with the workers
    gc.enable()
    _reply(
        control,
        problem=imports.problem,
        seconds=imports.seconds,
        reads=sorted(imports.reads),
        walked=imports.walked,
        shadowable=imports.shadowable(),
    )
    if imports.problem:
        sys.exit(1)
    order, fds = _serve(control, agent, importing.fork, imports)
    becoming.become(order, fds, imports)
    streams = (sys.stdout, sys.stderr)
    bootstrap.prepare()
    becoming.follow_streams(streams)
    bootstrap.execute(order["kind"], order["target"], order["args"])


def _serve(control: socket.socket, agent: int, fork: Any, imports: Any) -> tuple[dict[str, Any], list[int]]:
    """Fork a gang for each request; returns only in the workers, with their order and descriptors."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, FDS_MAX)
        if not data:
            os._exit(0)  # the agent is gone
        if data == b"changed":
            _reply(control, changed=imports.changed())
            continue
        if data == b"standby":
            if _fork_gang(control, 1, fork) is not None:
                control.close()
                order, fds = _load("template_standby").stand(fds[0], lambda: _tie(agent), imports)
                return order, fds
            os.close(fds[0])
            continue
        with open(fds[0], "rb") as file:
            orders = json.load(file)
        go = fds[1]
        stdio = [fds[2 + 3 * index : 5 + 3 * index] for index in range(len(orders))]
        index = _fork_gang(control, len(orders), fork)
        for number, group in enumerate(stdio):
            if number != index:
                for fd in group:
                    os.close(fd)
        if index is not None:
            control.close()
            _wait_for_agent(go, agent)
            return orders[index], stdio[index]
        os.close(go)


def _fork_gang(control: socket.socket, size: int, fork: Any) -> int | None:
    """Fork the workers and report their pids; returns its index in a worker, None in the template."""
    pids_read, pids_write = os.pipe()
    middle = _try_fork(fork)
    if middle == 0:
        for index in range(size):
            pid = _try_fork(fork)
            if pid == 0:
                os.setsid()  # before the agent hears of it, and may signal its group
                os.write(pids_write, b"%d %d\n" % (index, os.getpid()))
                os.close(pids_read)
                os.close(pids_write)
                return index
            if pid < 0:
                break
        os._exit(0)
    os.close(pids_write)
    if middle > 0:
        os.waitpid(middle, 0)
    with open(pids_read, "rb") as file:
        found = sorted(tuple(map(int, line.split())) for line in file)
    pids = [pid for _, pid in found]
    lack = f"only {len(pids)} of {size} workers could be forked" if len(pids) < size else ""
    _reply(control, pids=pids, problem=lack)
    return None


def _try_fork(fork: Any) -> int:
    """Fork; return -1 if the machine cannot start another process."""
    try:
        return int(fork())
    except OSError:
        return -1


def _wait_for_agent(go: int, agent: int) -> None:
    """In the worker: wait until the agent wants it to begin, then tie its life to the agent's."""
    poll = select.poll()
    poll.register(go, select.POLLIN)
    while not poll.poll(LOOK_S * 1000):
        try:
            os.kill(agent, 0)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            continue
    if os.read(go, 1) != b"g":
        os._exit(1)
    os.close(go)
    _tie(agent)


def _tie(agent: int) -> None:
    """Let this process die with its agent, whose child it has become."""
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != agent:
        os._exit(1)


def _reply(control: socket.socket, **content: object) -> None:
    try:
        control.send(json.dumps(content).encode())
    except OSError:
        os._exit(0)


def _load(name: str) -> ModuleType:
    """Load our neighbour by its path, as `__main__` of a worker that was executed would be."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    module = type(sys)(f"_holdfast_{name}")
    module.__dict__.update(__file__=path, __loader__=globals()["__loader__"])
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)
    return module


if __name__ == "__main__":
    main()
