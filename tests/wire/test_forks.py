"""A forked child closes its copies of the connections of its parent, who keeps them."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: a fork of this one would be a copy of the whole test run.
CODE = """
import os, socket, time, warnings
from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.messages import Query, Report
from holdfast.coordinator.messages import CODEC
from holdfast.train.ring import listen
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.forks import keep_from_children
from holdfast.wire.link import Link
from holdfast.wire.loop import io_thread

def own_sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=int(name))
        except OSError:
            continue
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            found.append(int(name))
        sock.detach()
    return sorted(found)

endpoint = io_thread().wait(Coordinator(b"x").open(Endpoint("127.0.0.1", 0)), 30)
link = io_thread().wait(Link.connect(endpoint, CODEC, b"x", lambda _: None, lambda _: None), 30)
listener = listen()
mine = keep_from_children(socket.create_connection(("127.0.0.1", endpoint.port)))
others = socket.create_connection(("127.0.0.1", endpoint.port))
assert mine.recv(1) and others.recv(1)  # they have been accepted
before = own_sockets()
assert len(before) == 8, before  # two listen, three connect, three were accepted

with warnings.catch_warnings(action="ignore"):
    pid = os.fork()
if pid == 0:
    left = own_sockets()
    os._exit(0 if left == [others.fileno()] and mine.fileno() == -1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child has connections of its parent"

assert own_sockets() == before, "the parent keeps its own"
channel = Channel.connect(endpoint, CODEC, b"x")
assert channel.ask(Query(), time.monotonic() + 30) == Report([])
os._exit(0)
"""


def test_a_child_keeps_none_of_its_parents_connections() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
