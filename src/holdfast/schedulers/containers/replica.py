"""The program of one replica, as its supervisor sees it: it runs while the container does, and ends as that ends.

The work is done by a keeper, a process that is not among the replica's own: see `keeper`. This one starts it, passes
on that the container is to end, and then ends with its exit code, or by the signal that ended it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

#: Marks the replica's processes, which are ended with it; the keeper is none of them.
GANG_VARIABLE = "HOLDFAST_GANG"
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start_keeper(words: list[str], descriptor: int) -> None:
    """Start the keeper in a session of its own, as a child of a process that has ended."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.set_inheritable(descriptor, True)
    program = [sys.executable, "-P", "-m", "holdfast.schedulers.containers.keeper", *words, str(descriptor)]
    env = {name: value for name, value in os.environ.items() if name != GANG_VARIABLE}
    try:
        os.execve(sys.executable, program, env)
    finally:
        os._exit(1)


def main(words: list[str]) -> int:
    """Run a container to its end; returns its exit code, negative for a signal."""
    ours, theirs = socket.socketpair()
    start_keeper(words, theirs.fileno())
    theirs.close()
    for number in ENDING:
        signal.signal(number, lambda *_: ours.send(b"e"))
    said = ours.recv(4096)
    return int(json.loads(said)["code"]) if said else 1


def leave(code: int) -> None:
    """End this process as the container has ended."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
