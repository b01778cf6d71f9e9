"""Stacks of running processes, taken without their help if necessary.

py-spy, if it is installed, reads another process's memory: it needs nothing from the process, works on one that is
stopped, and pauses nothing. It may be forbidden (a container without ptrace, another user). Then a Python worker of
ours is asked to write its stacks itself: the bootstrap has registered faulthandler for a signal that hardly any program
uses. That runs even while the worker is in C code, but not while it is stopped or waits in the kernel. The kernel's
own data, the state of a process and where it waits, are always reported.

Every function here has a time limit, and none raises: a missing stack is not an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.failures.stacks import (
    FRAMES_MAX,
    KERNEL_FRAMES_MAX,
    TEXT_CHARS_MAX,
    THREADS_MAX,
    Frame,
    Group,
    Stack,
    Thread,
    merge,
    name_ranks,
    odd_ones,
    render,
)
from holdfast.workers.bootstrap import STACKS_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Frame", "Group", "Stack", "Thread", "merge", "name_ranks", "odd_ones", "render", "take"]

TIMEOUT_S = 10.0
#: How long a worker may take to begin to write its stacks itself, and how long it must be silent to have ended.
ANSWER_S = 2.0
SILENCE_S = 0.05
DUMP_BYTES_MAX = 256 * 1024

#: Outermost frames in these files are ours, not the user's.
_OURS = tuple(str(Path(__file__).with_name(name)) for name in ("bootstrap.py", "template.py", "functions.py"))


def take(
    pids: Iterable[int],
    files: Mapping[int, str] | None = None,
    *,
    native: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> dict[int, Stack]:
    """Return where each of these processes is, by pid, within about `timeout_s` seconds.

    `files` names, by pid, where those that we started write their stacks when asked to. `native` adds calls in C, for
    which the process is paused for a moment.
    """
    wanted, files = list(dict.fromkeys(pids)), files or {}
    until = time.monotonic() + timeout_s
    found = {pid: _look(pid) for pid in wanted}
    seen, why = _spy(wanted, native=native, until=until)
    for pid in wanted:
        threads, note = seen.get(pid, ()), "" if found[pid].state in "ZX" else why.get(pid, "")
        if not threads and files.get(pid):
            threads, trouble = _ask(pid, files[pid], found[pid].state, until)
            note = "; ".join(filter(None, (note, trouble)))
        found[pid] = _with_threads(found[pid], threads, note)
    return found


def _with_threads(stack: Stack, threads: tuple[Thread, ...], note: str) -> Stack:
    kept = sorted(threads, key=lambda thread: not thread.is_main)[:THREADS_MAX]
    return Stack(stack.pid, stack.state, stack.wait, stack.kernel, tuple(kept), "" if kept else note[:TEXT_CHARS_MAX])


# -- what the kernel says ------------------------------------------------------------------------------------


def _look(pid: int) -> Stack:
    status = _read(pid, "status")
    state = re.search(r"^State:\s*(\S)", status, re.MULTILINE)
    wait = _read(pid, "wchan").strip()
    calls = re.findall(r"\]\s*([^\s+]+)", _read(pid, "stack"))  # readable for root only
    return Stack(
        pid,
        state[1] if state else "X",
        "" if wait == "0" else wait,
        tuple(calls[:KERNEL_FRAMES_MAX]),
    )


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


# -- py-spy --------------------------------------------------------------------------------------------------


def _spy(pids: list[int], *, native: bool, until: float) -> tuple[dict[int, tuple[Thread, ...]], dict[int, str]]:
    """Run py-spy on all of them at once; return the stacks, and why there are none of the others."""
    program = _find_spy()
    if program is None:
        return {}, dict.fromkeys(pids, "install py-spy to see more")
    # Not to pause it is what makes py-spy safe for a process that may be stopped already, and never leaves one
    # stopped behind; one that hangs does not move while it is read.
    mode = ["--native"] if native else ["--nonblocking"]
    spies = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            spies[pid] = subprocess.Popen(
                [program, "dump", "--json", *mode, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
    seen, why = {}, {}
    for pid, spy in spies.items():
        out, err = _finish(spy, until)
        try:
            seen[pid] = _parse_spy(json.loads(out))
        except (ValueError, KeyError, TypeError):
            words = err.decode(errors="replace").split("\n\nStack backtrace")[0].split()
            why[pid] = f"py-spy: {' '.join(words) or 'no answer in time'}"
    return seen, why


def _find_spy() -> str | None:
    beside_us = os.path.dirname(sys.executable)  # noqa: PTH120 - a search path, not a file
    return shutil.which("py-spy", path=os.pathsep.join([beside_us, os.environ.get("PATH", os.defpath)]))


def _finish(spy: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes]:
    try:
        return spy.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        spy.kill()
        return spy.communicate()


def _parse_spy(data: Any) -> tuple[Thread, ...]:
    threads = []
    for each in data:
        frames = [Frame(str(call["name"]), str(call["filename"]), int(call["line"] or 0)) for call in each["frames"]]
        name = str(each.get("thread_name") or each.get("os_thread_id") or "")
        is_main = each.get("os_thread_id") == each.get("pid")
        threads.append(Thread(name[:TEXT_CHARS_MAX], _users(frames), is_main))
    return tuple(threads)


# -- faulthandler --------------------------------------------------------------------------------------------


def _ask(pid: int, path: str, state: str, until: float) -> tuple[tuple[Thread, ...], str]:
    """Ask a worker of ours to write its stacks; return them, or why there are none."""
    if state in "ZX":
        return (), "it has ended"
    if state in "TtD":
        return (), "it cannot answer in this state"
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(pid, "status"), re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> (STACKS_SIGNAL - 1) & 1:
        return (), "it is not listening"  # and unasked for, the signal would kill it
    before = _size(path)
    with contextlib.suppress(OSError):
        os.kill(pid, STACKS_SIGNAL)
        _wait_written(path, before, min(until, time.monotonic() + ANSWER_S))
        with Path(path).open("rb") as file:
            file.seek(before)
            threads = _parse_dump(file.read(DUMP_BYTES_MAX).decode(errors="replace"))
        return threads, "" if threads else "it did not answer"
    return (), "it is gone"


def _wait_written(path: str, before: int, until: float) -> None:
    """Wait until the file has grown and grows no more: nothing else says that a dump is complete."""
    size, quiet = before, select.poll()
    while time.monotonic() < until:
        quiet.poll(SILENCE_S * 1000)
        last, size = size, _size(path)
        if size > before and size == last:
            return


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _parse_dump(text: str) -> tuple[Thread, ...]:
    """Parse faulthandler's output; the main thread, being the oldest, is the last one."""
    threads: list[Thread] = []
    for part in re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        frames = [
            Frame(name, file, int(line))
            for file, line, name in re.findall(r'^  File "(.*)", line (\d+) in (.*)$', body, re.MULTILINE)
        ]
        name = re.search(r"0x[0-9a-f]+(?: \[(.*?)\])?", head)
        threads.append(Thread((name[1] or name[0])[:TEXT_CHARS_MAX] if name else "", _users(frames)))
    if threads:
        threads[-1] = Thread("MainThread", threads[-1].frames, is_main=True)
    return tuple(threads)


def _users(frames: list[Frame]) -> tuple[Frame, ...]:
    """Leave out our own frames at the outer end, and what is too deep between the ends."""
    while frames and frames[-1].file in _OURS:
        frames = frames[:-1]
    if len(frames) > FRAMES_MAX:
        half = FRAMES_MAX // 2
        left = Frame(f"... {len(frames) - 2 * half} calls left out ...", "", 0)
        frames = [*frames[:half], left, *frames[-half + 1 :]]
    return tuple(Frame(f.function[:TEXT_CHARS_MAX], f.file[-TEXT_CHARS_MAX:], f.line) for f in frames)
