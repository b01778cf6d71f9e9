"""Hints about flags of a launch that were written after the script, so that the script gets them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.facts import facts
from holdfast.failures.failure import Kind
from holdfast.launcher.api import LaunchReport
from holdfast.launcher.options import FLAGS, OPTIONS, LaunchOptions

#: Flags that hardly any script has of its own.
TELLING = ("nnodes", "nproc_per_node", "standalone", "max_restarts", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
#: No more of a script is searched.
SOURCE_BYTES_MAX = 1 << 20
#: What argparse and others exit with when they do not like an argument.
USAGE_EXIT_CODE = 2


def warn_of_misplaced_flags(options: LaunchOptions) -> bool:
    """Warn of flags that a script gets and does not mention, before it runs with too few workers; say whether so."""
    if options.no_python or options.module:
        return False
    telling = {OPTIONS[name].flag for name in TELLING}
    found = [flag for flag in misplaced_flags(options.script_args) if flag in telling]
    unknown = [flag for flag in found if not _mentions(options.script, flag)]
    if unknown:
        facts.warn("flag_misplaced", sentence(unknown[0], options.script), flags=unknown)
    return bool(unknown)


def hint_after(report: LaunchReport, options: LaunchOptions) -> str:
    """Say which flag may have been meant for the launch, if a worker refused its arguments."""
    cause = report.verdict.cause if report.verdict is not None else None
    if cause is None or cause.kind is not Kind.EXIT or cause.exit_code != USAGE_EXIT_CODE:
        return ""
    complained = [flag for flag in misplaced_flags(options.script_args) if _names(flag, cause.message)]
    return sentence(complained[0], options.script) if complained else ""


def misplaced_flags(args: Iterable[str]) -> list[str]:
    """Return the flags of a launch that are among a script's arguments."""
    words = (word.partition("=")[0].replace("_", "-") for word in args if word.startswith("--"))
    return [word for word in words if word in FLAGS and word != "--help"]


def sentence(flag: str, script: str) -> str:
    """Say where a flag belongs."""
    return f"{script} gets {flag}, which is also a flag of `holdfast launch`; flags of the launch stand before {script}"


def _mentions(script: str, flag: str) -> bool:
    try:
        with Path(script).open("rb") as file:
            return _names(flag, file.read(SOURCE_BYTES_MAX).decode("utf-8", "replace"))
    except OSError:  # a folder, perhaps; the worker will tell
        return True


def _names(flag: str, text: str) -> bool:
    return flag.lstrip("-") in text.replace("_", "-")
