"""Types that msgspec reads records into: two threads may be the first to read one."""

from __future__ import annotations

import subprocess
import sys

#: Every type is new to msgspec, and its threads begin at once. Without `learned` it crashes within a few types.
MANY_AT_ONCE = """
import sys, threading
import msgspec
from holdfast.typed import learned

sys.setswitchinterval(1e-6)
for number in range(100):
    inner = msgspec.defstruct(f"Inner{number}", [(f"field{each}", int | None, None) for each in range(20)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"field{each}", list[inner] | None, None) for each in range(20)])
    start = threading.Barrier(4)

    def read():
        start.wait()
        msgspec.convert({"field1": [{"field2": 1}]}, learned(outer))

    threads = [threading.Thread(target=read) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
print("all read")
"""


def test_many_threads_may_be_the_first_to_read_a_type() -> None:
    done = subprocess.run([sys.executable, "-c", MANY_AT_ONCE], capture_output=True, text=True, timeout=240)

    assert (done.returncode, done.stdout, done.stderr) == (0, "all read\n", "")


#: Another thread is in the midst of a type when this one forks; it goes on as soon as the fork has begun.
FORK = """
import os, signal, threading
import msgspec
from holdfast import typed

entered, go, decoder = threading.Event(), threading.Event(), msgspec.json.Decoder

def slow(kind):
    entered.set()
    go.wait()
    return decoder(kind)

msgspec.json.Decoder = slow
thread = threading.Thread(target=typed.learned, args=(list[int],))
thread.start()
entered.wait()
os.register_at_fork(before=go.set)
child = os.fork()
if not child:
    signal.alarm(60)
    typed.learned(list[str])
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_may_learn_types_though_a_thread_was_about_to_when_it_was_forked() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=240)

    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
