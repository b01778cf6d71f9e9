"""A process that has imported what workers need and forks one for every order: `python nursery.py MODULE...`.

Orders come as JSON lines on standard input, `{"script": ..., "options": {...}, "log": ...}`; the answer is the pid.
With `"kill_stopped"` a worker that is stopped is killed at once, as a supervisor that sees it would.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print("ready", flush=True)
    # Without readline's own buffer, so that no thread is needed to read, and a fork inherits nothing half-read.
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(order)
        threading.Thread(target=look_after, args=(pid, order.get("kill_stopped", False)), daemon=True).start()
        print(pid, flush=True)


def become(order: dict) -> None:
    """Be the worker; never returns."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        log = os.open(order["log"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, copy in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, copy)
        sys.argv = [order["script"], json.dumps(order["options"])]
        sys.path[0] = str(Path(order["script"]).parent)
        runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it goes to the log
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def look_after(pid: int, kill_stopped: bool) -> None:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return
        if kill_stopped:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
