"""TorchElastic's `utils`: small helpers for launchers and agents."""

from __future__ import annotations

import os
from typing import Any

from holdfast.agent.environment import LOCAL_RANK_MACRO, fill_local_rank
from holdfast.errors import UsageError
from holdfast.wire.ports import get_free_port, get_socket_with_port
from holdfast.workers.strays import read_stat

__all__ = [
    "get_env_variable_or_raise",
    "get_free_port",
    "get_socket_with_port",
    "is_uninterruptible_state",
    "macros",
    "read_proc_state",
]


def get_env_variable_or_raise(env_name: str) -> str:
    """Return a variable of the environment that must be there."""
    value = os.environ.get(env_name)
    if value is None:
        raise UsageError(f"Environment variable {env_name} expected, but not set")
    return value


class macros:  # noqa: N801 - the name that users know
    """What stands for a worker's own values in its arguments."""

    local_rank = LOCAL_RANK_MACRO

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        """Put a local rank in place of the macro; what is no text stays as it is."""
        return [fill_local_rank((each,), int(local_rank))[0] if isinstance(each, str) else each for each in args]


def read_proc_state(pid: int) -> str | None:
    """Return the state of a process as /proc has it, `R`, `S`, `D`, `Z`..., or None if there is none."""
    found = read_stat(pid)
    return found.state if found is not None else None


def is_uninterruptible_state(state: str | None) -> bool:
    """Whether this is the state in which not even SIGKILL is heard."""
    return state == "D"
