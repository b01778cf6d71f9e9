"""A worker's environment variables: torchrun's, and ours beside them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The only macro in a worker's arguments; everything else, `$$` included, is left as it was written.
LOCAL_RANK_MACRO = "${local_rank}"


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a round tells all workers of a node."""

    run_id: str
    role: str
    local_world_size: int
    group_rank: int
    group_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    max_restarts: int
    #: Names of the signals that end the agent, as `--signals-to-handle` has them.
    signals_to_handle: str
    use_agent_store: bool = False
    #: Which round this is, and its namespace in the store, where the rendezvous is ours.
    round_number: int | None = None
    extra: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What a round tells one worker."""

    local_rank: int
    rank: int
    world_size: int
    role_rank: int
    role_world_size: int


def worker_environment(
    inherited: Mapping[str, str], round_view: RoundView, worker: WorkerView, *, virtual_local_rank: bool = False
) -> dict[str, str]:
    """Return the variables to lay over the agent's own environment for one worker."""
    env = {
        "LOCAL_RANK": str(0 if virtual_local_rank else worker.local_rank),
        "RANK": str(worker.rank),
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(round_view.local_world_size),
        "GROUP_RANK": str(round_view.group_rank),
        "GROUP_WORLD_SIZE": str(round_view.group_world_size),
        "ROLE_NAME": round_view.role,
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": round_view.master_addr,
        "MASTER_PORT": str(round_view.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(round_view.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(round_view.max_restarts),
        "TORCHELASTIC_RUN_ID": round_view.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(round_view.use_agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": round_view.signals_to_handle,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    # One thread per worker unless the user said otherwise: many workers that each take every core slow each other down.
    if round_view.local_world_size > 1 and "OMP_NUM_THREADS" not in inherited:
        env["OMP_NUM_THREADS"] = "1"
    if virtual_local_rank:
        env["CUDA_VISIBLE_DEVICES"] = _own_device(inherited.get("CUDA_VISIBLE_DEVICES"), worker.local_rank)
    if round_view.round_number is not None:
        env["HOLDFAST_ROUND"] = str(round_view.round_number)
    return {**env, **(round_view.extra or {})}


def fill_local_rank(args: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Put a worker's local rank in place of the macro in its arguments."""
    return tuple(argument.replace(LOCAL_RANK_MACRO, str(local_rank)) for argument in args)


def _own_device(visible: str | None, local_rank: int) -> str:
    devices = [device.strip() for device in visible.split(",")] if visible else []
    return devices[local_rank] if local_rank < len(devices) else str(local_rank)
