"""How a fork of the template becomes what exec would have made of it.

Loaded by its path into the template (see `template.py`), so it imports nothing of ours. What stays different from a
worker that was executed is listed in docs/howto/from-torchrun.md; tests/workers/test_likeness.py compares the two.
"""
# This file is run by its path and imports only what every Python program may have loaded anyway.
# ruff: noqa: PTH109, PTH123

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_MM, PR_SET_MM_MAP = 35, 14

#: The strings that /proc shows of us; the kernel reads them from here for as long as the process lives.
_shown: Any = None


def become(order: dict[str, Any], fds: list[int], imports: Any) -> None:
    """Take on what exec would have set: streams, folder, environment, affinity, names, random numbers."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    _set_environment(order["env"], imports.changes)
    _Guarded.watch(imports.early)
    if order["cpus"]:
        try:
            os.sched_setaffinity(0, order["cpus"])
        except OSError:
            pass  # as in a worker that is executed: the CPUs may be gone
    _write_names(order)
    _refresh_state()
    imports.generators.reseed()
    for fd, data in zip((1, 2), imports.output, strict=True):
        _write_all(fd, data)


def _set_environment(env: dict[str, str], changes: dict[str, str | None]) -> None:
    os.environ.clear()
    os.environ.update(env)
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Guarded(type(os.environ)):  # type: ignore[misc]
    """`os.environ` of a worker: warns of variables that have no effect in a fork, and would have in a new process.

    The template has imported what torch imports at first use. A variable that this has read, and that the program sets
    between importing torch and using it, comes too late here. `preload.py` sees that in the program's own code; this
    sees it in libraries.
    """

    names: set[str]

    @classmethod
    def watch(cls, names: set[str]) -> None:
        cls.names = set(names)
        cls.__name__, cls.__qualname__, cls.__module__ = "_Environ", "_Environ", "os"
        if names:
            os.environ.__class__ = cls

    def __setitem__(self, key: str, value: str) -> None:
        if key in type(self).names and self.get(key) != value:
            self._warn(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        if key in type(self).names and key in self:
            self._warn(key)
        super().__delitem__(key)

    def _warn(self, key: str) -> None:
        frame: Any = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc"):
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith(("torch.", "triton.")):
            return  # they know when they read it
        type(self).names.discard(key)
        sys.stderr.write(
            f"holdfast: {key} is set after the modules that read it were imported, before this worker was forked; "
            "start with --preload none for it to have an effect\n"
        )


def _write_all(fd: int, data: bytes) -> None:
    """Print what the imports have printed; a closed output is left to the program."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:
            return


# -- names ---------------------------------------------------------------------------------------------------


class _MemoryMap(ctypes.Structure):
    """The kernel's `struct prctl_mm_map`: where the parts of this process lie, as /proc and ps see it."""

    _fields_ = (
        ("start_code", ctypes.c_uint64),
        ("end_code", ctypes.c_uint64),
        ("start_data", ctypes.c_uint64),
        ("end_data", ctypes.c_uint64),
        ("start_brk", ctypes.c_uint64),
        ("brk", ctypes.c_uint64),
        ("start_stack", ctypes.c_uint64),
        ("arg_start", ctypes.c_uint64),
        ("arg_end", ctypes.c_uint64),
        ("env_start", ctypes.c_uint64),
        ("env_end", ctypes.c_uint64),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def _write_names(order: dict[str, Any]) -> None:
    """Show the worker's own command line and environment in /proc, where ps and the search for strays look."""
    module = ["-m"] if order["kind"] == "module" else []
    words = [sys.executable, "-u", *module, order["target"], *order["args"]]
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    environment = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in order["env"].items())
    where = _read_map()
    if where is None:
        return
    # Where this is allowed it is exact. Where it is not (gVisor, kernels without checkpoint/restore), the old strings
    # are written over: the gang's token, by which what a worker has started is found, and the command line.
    if not _move_names(where, line, environment):
        _overwrite_names(where, line, order["env"]["HOLDFAST_GANG"].encode())


def _read_map() -> _MemoryMap | None:
    with open("/proc/self/stat") as file:
        fields = ["0", "0", *file.read().rpartition(")")[2].split()]  # as proc(5) counts them, from 1

    def field(number: int) -> int:
        return int(fields[number - 1]) if number <= len(fields) else 0

    where = _MemoryMap(
        start_code=field(26),
        end_code=field(27),
        start_data=field(45),
        end_data=field(46),
        start_brk=field(47),
        start_stack=field(28),
        arg_start=field(48),
        arg_end=field(49),
        env_start=field(50),
        env_end=field(51),
        exe_fd=0xFFFFFFFF,
    )
    return where if 0 < where.arg_start < where.arg_end <= where.env_start <= where.env_end else None


def _move_names(where: _MemoryMap, line: bytes, environment: bytes) -> bool:
    """Tell the kernel to show these strings; return whether it will."""
    global _shown
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    shown = ctypes.create_string_buffer(line + environment, len(line) + len(environment))
    start = ctypes.addressof(shown)
    wanted = _MemoryMap.from_buffer_copy(where)
    wanted.arg_start, wanted.arg_end = start, start + len(line)
    wanted.env_start, wanted.env_end = start + len(line), start + len(line) + len(environment)
    size = ctypes.c_ulong(ctypes.sizeof(wanted))
    arguments = (PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(wanted), size, ctypes.c_ulong(0))
    wanted.brk = libc.sbrk(0)  # last of all: the heap must not grow between here and the call
    if libc.prctl(*arguments) != 0:
        return False
    _shown = shown
    return True


def _overwrite_names(where: _MemoryMap, line: bytes, token: bytes) -> None:
    room = where.arg_end - where.arg_start
    ctypes.memmove(where.arg_start, line[: room - 1].ljust(room, b"\0"), room)
    slot = ctypes.string_at(where.env_start, where.env_end - where.env_start).find(b"HOLDFAST_GANG=")
    if slot >= 0:
        ctypes.memmove(where.env_start + slot + len(b"HOLDFAST_GANG="), token, len(token))


# -- state ---------------------------------------------------------------------------------------------------


def _refresh_state() -> None:
    """Undo what processes forked from one template would otherwise share."""
    time.tzset()
    sys.path_importer_cache.clear()  # what lay in folders when the template looked
    main_thread: Any = sys.modules["threading"].main_thread()
    if hasattr(main_thread, "_set_native_id"):
        main_thread._set_native_id()  # Python leaves the parent's
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)


def follow_streams(before: tuple[Any, Any]) -> None:
    """Redirect log handlers that modules made while they were imported to the worker's own streams."""
    logging: Any = sys.modules.get("logging")
    if logging is None:
        return
    now = {id(old): new for old, new in zip(before, (sys.stdout, sys.stderr), strict=True) if old is not new}
    for reference in list(logging._handlerList):
        handler = reference()
        if isinstance(handler, logging.StreamHandler) and id(handler.stream) in now:
            handler.setStream(now[id(handler.stream)])
