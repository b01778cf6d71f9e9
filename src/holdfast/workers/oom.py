"""Out-of-memory kills, counted by the kernel and read where it shows the count.

The cgroup's own counter is the evidence (v2 `memory.events`, v1 `memory.oom_control`). Where this process
cannot see its cgroup, the host's counter in /proc/vmstat stands in: it may count the kill of another program, which
matters only if one of our workers got an unexplained SIGKILL in the same time. The kernel log is not read.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def oom_kills(root: Path = _ROOT, proc: Path = Path("/proc")) -> int | None:
    """Return how many out-of-memory kills the kernel has counted so far, or None if it does not say."""
    for path in [*_counters(root, proc / "self" / "cgroup"), proc / "vmstat"]:
        count = _read_count(path)
        if count is not None:
            return count
    return None


def _counters(root: Path, cgroup_file: Path) -> list[Path]:
    """Name the files that may hold this process's counter, the closest first."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        below = path.lstrip("/")
        if "memory" in controllers.split(","):
            found += [root / "memory" / below / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif controllers == "":
            found += [root / below / "memory.events", root / "memory.events"]
            found.append(root / "unified" / below / "memory.events")
    return found


def _read_count(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
