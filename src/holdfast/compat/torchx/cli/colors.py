"""Colours of a terminal; empty if the output is none."""

from __future__ import annotations

import sys

_IS_TERMINAL = sys.stdout.isatty()

BLUE = "\033[34m" if _IS_TERMINAL else ""
ENDC = "\033[0m" if _IS_TERMINAL else ""
GRAY = "\033[2m" if _IS_TERMINAL else ""
GREEN = "\033[32m" if _IS_TERMINAL else ""
ORANGE = "\033[38:2:238:76:44m" if _IS_TERMINAL else ""
