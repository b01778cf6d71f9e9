"""Which files of a workspace stay behind: patterns like those of .gitignore. Pure.

One rule decides: the last pattern that matches a path, or a folder above it, says whether it is left out. So
`!keep.txt` brings a file back even from a folder that was left out, as .dockerignore has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

#: Left out unless the workspace's own file says otherwise: nobody means to ship these.
DEFAULT_PATTERNS = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
)


class Pattern(NamedTuple):
    """One line of an ignore file."""

    regex: re.Pattern[str]
    brings_back: bool
    folders_only: bool


class Ignore:
    """Decides for paths relative to the workspace, written with slashes."""

    def __init__(self, lines: Iterable[str] = (), *, defaults: Iterable[str] = DEFAULT_PATTERNS) -> None:
        self._patterns = [pattern for line in (*defaults, *lines) if (pattern := _parse(line)) is not None]
        #: Whether a folder that is left out may still hold something that is not.
        self.may_bring_back = any(pattern.brings_back for pattern in self._patterns)

    def ignores(self, path: str, is_folder: bool = False) -> bool:
        """Whether this path stays behind."""
        parts = path.split("/")
        # The path itself and every folder above it, each with whether it is a folder.
        names = [("/".join(parts[:depth]), depth < len(parts) or is_folder) for depth in range(1, len(parts) + 1)]
        ignored = False
        for pattern in self._patterns:
            if pattern.brings_back is ignored and any(
                pattern.regex.fullmatch(name) for name, folder in names if folder or not pattern.folders_only
            ):
                ignored = not pattern.brings_back
        return ignored


def _parse(line: str) -> Pattern | None:
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    brings_back = text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    text = text.removeprefix("./").lstrip("/")
    if not text:
        return None
    return Pattern(re.compile(("" if anchored else "(?:.*/)?") + _translate(text)), brings_back, folders_only)


def _translate(glob: str) -> str:
    """Turn a glob into a regex: `*` and `?` stop at slashes, `**` does not."""
    out, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif glob.startswith("**", at):
            out, at = out + ".*", at + 2
        elif glob[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif glob[at] == "?":
            out, at = out + "[^/]", at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            out, at = out + "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]", end + 1
        else:
            at += glob[at] == "\\" and at + 1 < len(glob)
            out, at = out + re.escape(glob[at]), at + 1
    return out
