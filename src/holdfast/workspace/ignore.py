"""Which files of a workspace are not shipped: patterns as in .gitignore. Pure.

The last pattern that matches a path, or a folder above it, decides. So `!keep.txt` brings a file back even from a
folder that is ignored, as in .dockerignore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pathspec import PathSpec

from holdfast.errors import UsageError

#: Ignored unless the workspace's own file brings them back.
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


class Ignore:
    """Decides for paths relative to the workspace, written with slashes."""

    def __init__(self, lines: Iterable[str] = (), *, defaults: Iterable[str] = DEFAULT_PATTERNS) -> None:
        patterns = [re.sub(r"^(!?)\./", r"\1", line.strip()) for line in (*defaults, *lines)]
        try:
            self._spec = PathSpec.from_lines("gitignore", patterns)
        except ValueError as error:
            raise UsageError(f"a pattern in the workspace's ignore file cannot be read: {error}") from None
        #: Whether a folder that is ignored may still hold a path that is not.
        self.may_bring_back = any(pattern.include is False for pattern in self._spec.patterns)

    def ignores(self, path: str, is_folder: bool = False) -> bool:
        """Whether this path is not shipped."""
        return self._spec.match_file(f"{path}/" if is_folder else path)
