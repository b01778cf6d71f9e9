"""Files that describe components."""

from __future__ import annotations

from pathlib import Path

from holdfast.compat.torchx.util import entrypoints


def read_conf_file(conf_file: str) -> str:
    """Return the text of a file, or what the entry point `get_file_contents` of the group `torchx.file` has for it."""
    path = Path(conf_file)
    if path.exists():
        return path.read_text()
    builtin: str | None = entrypoints.load("torchx.file", "get_file_contents", default=lambda _: None)(str(conf_file))
    if builtin:
        return builtin
    raise FileNotFoundError(f"there is no file {conf_file}")
