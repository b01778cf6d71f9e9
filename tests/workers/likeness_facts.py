# ruff: noqa: E402
"""A program that prints all that it can see of its own process, for test_likeness.py."""

import sys

PRELOADED = "numpy" in sys.modules

import atexit
import faulthandler
import gc
import inspect
import json
import locale
import logging
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import resource
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy


class Own:
    pass


def lines(path):
    return dict(line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)


def strings(path):
    return Path(path).read_bytes().decode().split("\0")


def descriptors():
    """The open ones, without those that both kinds of worker have for stacks, and that of the listing itself."""
    paths = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return sorted(int(path.name) for path in paths if path.readlink().name not in ("stacks.log", "fault.log"))


def square(x):
    return x * x


def facts():
    main = sys.modules["__main__"]
    status = lines("/proc/self/status")
    found = {"preloaded": PRELOADED}
    found["argv"] = [sys.argv, sys.orig_argv, sys.executable, sys.prefix, sys.base_prefix]
    found["path"] = [sys.path, [type(f).__name__ for f in sys.meta_path], len(sys.path_hooks)]
    found["flags"] = [str(sys.flags), sys.warnoptions, str(sys._xoptions), sys.dont_write_bytecode]
    found["main"] = sorted((k, type(v).__name__) for k, v in vars(main).items())
    found["main values"] = [repr(getattr(main, k, 0)) for k in ("__file__", "__package__", "__doc__", "__name__")]
    found["main spec"] = [
        __spec__ and __spec__.name,
        repr(globals().get("__cached__", "none")),
        type(__loader__).__name__,
    ]
    found["builtins"] = [
        type(__builtins__).__name__,
        hasattr(__builtins__, "print"),
        __builtins__ is sys.modules["builtins"],
    ]
    found["pickle"] = type(pickle.loads(pickle.dumps(Own()))) is Own
    found["source"] = inspect.getsource(square)
    found["streams"] = [
        [
            s.name,
            s.fileno(),
            s.mode,
            s.encoding,
            s.errors,
            s.line_buffering,
            s.write_through,
            s.isatty(),
            type(s.buffer).__name__,
            s is getattr(sys, f"__{n}__"),
        ]
        for n, s in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
    ]
    found["signals"] = {
        n.name: repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals() if hasattr(n, "name")
    }
    found["signal sets"] = [status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")]
    found["identity"] = [
        status[k] for k in ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Cpus_allowed_list")
    ]
    found["session"] = [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getppid()]
    found["cwd"] = [str(Path.cwd()), os.environ.get("PWD"), multiprocessing.process.ORIGINAL_DIR]
    found["limits"] = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
    found["nice"] = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
    found["threads"] = [
        threading.active_count(),
        threading.current_thread() is threading.main_thread(),
        threading.main_thread().native_id == os.getpid(),
        threading.main_thread().name,
        threading.main_thread().ident == threading.get_ident(),
    ]
    found["descriptors"] = descriptors()
    found["inheritable"] = [os.get_inheritable(fd) for fd in (0, 1, 2)]
    found["environment"] = sorted(os.environ.items())
    found["shown environment"] = sorted(strings("/proc/self/environ"))
    found["shown names"] = [Path("/proc/self/comm").read_text(), os.path.realpath("/proc/self/exe")]
    found["gc"] = [gc.isenabled(), gc.get_threshold(), gc.get_debug()]
    found["limits of python"] = [
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        sys.getdlopenflags(),
        sys.gettrace() is None,
    ]
    found["hooks"] = [
        sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__,
        threading.excepthook is threading.__excepthook__,
        sys.unraisablehook is sys.__unraisablehook__,
    ]
    found["warnings"] = [str(f) for f in warnings.filters]
    found["faulthandler"] = faulthandler.is_enabled()
    found["locale"] = [
        locale.setlocale(locale.LC_ALL),
        locale.getpreferredencoding(),
        sys.getfilesystemencoding(),
        time.tzname,
    ]
    found["logging"] = [logging.root.level, len(logging.root.handlers), logging.lastResort.level]
    found["tempfile"] = tempfile.gettempdir()
    process = multiprocessing.current_process()
    found["multiprocessing"] = [
        process.name,
        process.daemon,
        len(process.authkey),
        multiprocessing.parent_process(),
        multiprocessing.get_start_method(allow_none=True),
        multiprocessing.active_children(),
    ]
    found["spawn"] = multiprocessing.spawn.get_preparation_data("x").get("init_main_from_path")
    found["numpy"] = [numpy.random.get_state()[0], numpy.random.get_state()[2], numpy.geterr()]
    found["timers"] = [signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1)]
    found["atexit"] = atexit._ncallbacks()
    found["children"] = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return found


if __name__ == "__main__":
    print(json.dumps(facts(), default=repr))
