"""Writes docs/COMPATIBILITY.md from the kept tables, from ours, and from the reasons for what is absent or different.

python tests/compat/surface/write.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from compare import compare  # noqa: E402
from families import FAMILIES, reasons_path, table_path  # noqa: E402

BEHAVIOUR = HERE / "behaviour.md"
PAGE = HERE.parent.parent.parent / "docs" / "COMPATIBILITY.md"

HEAD = """\
# Compatibility with TorchElastic and TorchX

Written by `tests/compat/surface/write.py` from tables of every public name and of the private ones that other packages
import; a test says when it is out of date. To use these names, call `holdfast.compat.install()` in a program, run one
with `python -m holdfast.compat script.py` (or `-m module`), or start workers with `holdfast launch --compat`.
`torchelastic` can be imported at once.

Additions are not listed: further arguments after theirs, further members.
"""


def kept(family: str) -> dict[str, Any]:
    """The surface of the others."""
    found: dict[str, Any] = json.loads(table_path(family).read_text())
    return found


@cache
def ours(family: str) -> dict[str, Any]:
    """The same of ours, read in a process of its own because it installs the names."""
    command = [sys.executable, "-W", "ignore", str(HERE / "read.py"), family, "--ours"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def reasons(family: str) -> dict[str, str]:
    """Why a name is absent or different: a pattern of paths, and a sentence."""
    found: dict[str, str] = tomllib.loads(reasons_path(family).read_text())
    return found


def reason_for(path: str, known: Mapping[str, str]) -> str | None:
    """The pattern that covers a path, if there is one."""
    return next((pattern for pattern in known if fnmatchcase(path, pattern)), None)


def page() -> str:
    """The whole page."""
    families = [family for family in FAMILIES if table_path(family).exists()]
    return HEAD + BEHAVIOUR.read_text() + "".join(section(family) for family in families)


def section(family: str) -> str:
    """What is to be said of one family."""
    theirs, known = kept(family), reasons(family)
    found = compare(theirs, ours(family))
    lines = [f"\n## {FAMILIES[family].title}: {theirs['package']} {theirs['version']}\n"]
    total = sum(len(names) for names in theirs["modules"].values())
    absent = sum(weight(theirs, path) for path, what in found.items() if what.startswith("absent"))
    differ = sum(not what.startswith("absent") for what in found.values())
    lines.append(f"{len(theirs['modules'])} modules, {total} names; {differ} differ and {absent} are absent.\n")
    lines.append("| module | names | differ | absent |\n|---|---|---|---|")
    for module, names in theirs["modules"].items():
        mine = {path: what for path, what in found.items() if path == module or path.startswith(f"{module}.")}
        mine = {path: what for path, what in mine.items() if home(theirs, path) == module}
        gone = sum(weight(theirs, path) for path, what in mine.items() if what.startswith("absent"))
        other = sum(not what.startswith("absent") for what in mine.values())
        lines.append(f"| `{module}` | {len(names)} | {other or ''} | {gone or ''} |")
    lines.append("\n### Why\n")
    for pattern, sentence in known.items():
        covered = {path: what for path, what in found.items() if reason_for(path, known) == pattern}
        lines.append(f"- {sentence}")
        lines += [f"  - `{path}` {what}" for path, what in covered.items()]
    return "\n".join(lines) + "\n"


def weight(theirs: Mapping[str, Any], path: str) -> int:
    """How many names are gone with this one: those of a module, or itself."""
    return len(theirs["modules"].get(path, "x"))


def home(theirs: Mapping[str, Any], path: str) -> str:
    """The module that a path belongs to."""
    while path and path not in theirs["modules"]:
        path = path.rpartition(".")[0]
    return path


if __name__ == "__main__":
    PAGE.write_text(page())
