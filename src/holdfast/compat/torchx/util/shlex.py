"""Words for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def join(args: Iterable[str]) -> str:
    """Join words, each in quotes where it needs them."""
    return shlex.join(args)
