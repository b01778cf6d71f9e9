"""The background thread that owns the sockets."""

from __future__ import annotations

import subprocess
import sys

#: A library that ends slowly, as large ones do: for so long there is no Python any more, and the thread is still there.
ENDS_SLOWLY = """
import ctypes, sys
from holdfast.wire.loop import io_thread

async def later():
    io.loop.call_later(0.5, print)

io = io_thread()
io.wait(later())
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # which sleeps for as many seconds as the exit code says
"""


def test_a_process_ends_with_its_own_exit_code_whatever_its_loop_is_about_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_SLOWLY + "sys.exit(1)"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, "")


def test_what_is_registered_for_the_end_may_use_the_loop() -> None:
    """Even what was registered before the loop was known, and so is called after it has come to rest."""
    program = """
import atexit

async def answer():
    return "still here"

atexit.register(lambda: print(io.wait(answer())))
"""
    done = subprocess.run([sys.executable, "-c", program + ENDS_SLOWLY], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")
