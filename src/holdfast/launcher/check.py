"""Checks a launch config when it is made: a wrong type or number is reported at once, by its name."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.launcher.options import OPTIONS

if TYPE_CHECKING:
    from holdfast.launcher.api import LaunchConfig


def check(config: LaunchConfig) -> None:
    """Raise `UsageError` for invalid settings."""
    config.min_nodes = _whole("min_nodes", config.min_nodes, 1)
    config.max_nodes = _whole("max_nodes", config.max_nodes, 1)
    if config.max_nodes < config.min_nodes:
        raise UsageError(f"max_nodes is {config.max_nodes} but must be at least min_nodes, {config.min_nodes}")
    config.nproc_per_node = _whole("nproc_per_node", config.nproc_per_node, 1)
    config.max_restarts = _whole("max_restarts", config.max_restarts, 0)
    _number("monitor_interval", config.monitor_interval, above=True)
    _number("exit_barrier_timeout", config.exit_barrier_timeout)
    if config.shutdown_timeout is not None:
        _number("shutdown_timeout", config.shutdown_timeout)
    if config.rdzv_timeout != -1:
        _number("rdzv_timeout", config.rdzv_timeout)
    for name in ("run_id", "role", "rdzv_endpoint", "rdzv_backend", "start_method", "signals_to_handle"):
        _of_type(name, getattr(config, name), str, "text")
    if not isinstance(config.rdzv_configs, dict):
        raise UsageError(f"rdzv_configs must be a dictionary, not {config.rdzv_configs!r}")
    methods = OPTIONS["start_method"].values
    if config.start_method not in methods:
        raise UsageError(f"start_method is {config.start_method!r} but must be one of {', '.join(methods)}")


def _whole(name: str, value: Any, least: int) -> int:
    """Take anything that is a whole number, such as numpy's."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise UsageError(f"{name} is {number} but must be at least {least}")
    return number


def _number(name: str, value: Any, *, above: bool = False) -> None:
    try:
        number = float(value) if not isinstance(value, str) else None
    except (TypeError, ValueError):
        number = None
    if number is None or number != number:
        raise UsageError(f"{name} must be a number of seconds, not {value!r}")
    if number < 0 or (above and number == 0):
        raise UsageError(f"{name} is {value!r} but must be {'above' if above else 'at least'} 0")


def _of_type(name: str, value: Any, kind: type, words: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be {words}, not {value!r}")
