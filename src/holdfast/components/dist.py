"""Distributed training: one agent on every node, started by `holdfast launch`, with workers that find each other.

`-j` says how large: `4` is four workers on one node, `2x4` two nodes with four each, `1:4x8` from one to four nodes
with eight workers each; nodes may then come and go. `image` is the scheduler's own by default; the local one needs
none. On every node `python` must be one that has Holdfast.

With one node the agent is started directly. With several, a shell puts the first node's address in place, which only
the scheduler knows, and is replaced by the agent at once. Arguments reach the script exactly as given, but for macros
such as `${app_id}`; write `$$` for a dollar sign.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

from holdfast.components.launch_flags import defaults_of, launch_words, takes_launch_flags
from holdfast.errors import UsageError
from holdfast.specs import AppDef, Resource, RetryPolicy, Role, macros, parse_mounts, resource

#: The port that TorchX uses. A scheduler on whose hosts several jobs meet puts a free one into the variable.
RDZV_PORT = 29500
#: The experiment of a run whose name says none, for trackers.
DEFAULT_EXPERIMENT = "default-experiment"
PORT_VARIABLE = "HOLDFAST_LOCAL_RDZV_PORT"

#: What `--debug` sets for torch.
DEBUG_ENV = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}

#: The same, by the name that components of others import.
_TORCH_DEBUG_FLAGS = DEBUG_ENV

#: What `python` is started with to become an agent.
LAUNCH = ("-m", "holdfast", "launch")

_SIZE = re.compile(r"(?:(?:(?P<low>[0-9]+):)?(?P<high>[0-9]+)x)?(?P<workers>[0-9]+)")
_NODES = re.compile(r"(?:(?P<low>[0-9]+):)?(?P<high>[0-9]+)")


class Size(NamedTuple):
    """How large a job is: from how many nodes to how many, and workers on each."""

    low: int
    high: int
    workers: int

    @property
    def nnodes(self) -> str:
        """What `holdfast launch --nnodes` takes."""
        return str(self.high) if self.low == self.high else f"{self.low}:{self.high}"


@takes_launch_flags
def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = RDZV_PORT,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int | str = 3,
    **flags: Any,
) -> AppDef:
    """Run a script or module on all workers of all nodes, as torchrun would.

    Takes every flag of `holdfast launch` that makes sense for a job.

    Args:
        script_args: Arguments of the script.
        script: Script to run on every worker.
        m: Python module to run instead of a script.
        image: Image to run in, if the scheduler uses images.
        name: Name of the job, or experiment/name; by default that of the script.
        h: Named resource of each node; it replaces cpu, gpu and memMB.
        cpu: CPUs of each node.
        gpu: GPUs of each node.
        memMB: Memory of each node, in MB.
        j: Size of the job, [[min:]nodes x]workers per node, as in 4, 2x4 or 1:4x8.
        env: Environment variables of the script.
        metadata: Notes for the scheduler.
        max_retries: How often the scheduler may start the job again.
        rdzv_port: Port on the first node where nodes meet.
        rdzv_backend: How nodes meet; c10d and holdfast mean the same.
        rdzv_conf: Further settings of the rendezvous, as in join_timeout=900.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
        debug: Make torch log more and fail at the right place; training is slower.
        tee: What goes to log files and the console: 1 stdout, 2 stderr, 3 both, 0 straight to the console.
    """
    flags |= {"rdzv_backend": rdzv_backend, "rdzv_conf": rdzv_conf, "tee": tee}
    role = _role(image, env, debug, max_retries, resource(cpu, gpu, memMB, h), mounts)
    return _job(script, m, script_args, parse_size(j), flags, role, ddp, name=name, port=rdzv_port, metadata=metadata)


@takes_launch_flags
def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
    rdzv_backend: str = "c10d",
    tee: int | str = 3,
    **flags: Any,
) -> AppDef:
    """Run a script or module with one worker for each GPU of a named resource.

    Takes every flag of `holdfast launch` that makes sense for a job.

    Args:
        args: Arguments of the script.
        script: Script to run on every worker.
        m: Python module to run instead of a script.
        image: Image to run in, if the scheduler uses images.
        name: Name of the job, or experiment/name; by default that of the script.
        h: Named resource of each node.
        j: Number of nodes, [min:]nodes, with as many workers as the resource has GPUs; or [min:]nodes x workers.
        env: Environment variables of the script.
        metadata: Notes for the scheduler.
        max_retries: How often the scheduler may start the job again.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
        debug: Make torch log more and fail at the right place; training is slower.
        rdzv_backend: How nodes meet; c10d and holdfast mean the same.
        tee: What goes to log files and the console: 1 stdout, 2 stderr, 3 both, 0 straight to the console.
    """
    machine = resource(h=h)
    size = parse_size(j) if "x" in j else _by_gpus(j, h, int(machine.gpu))
    role = _role(image, env, debug, max_retries, machine, mounts)
    flags |= {"rdzv_backend": rdzv_backend, "tee": tee}
    return _job(script, m, args, size, flags, role, spmd, name=name, metadata=metadata)


@takes_launch_flags
def elastic(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    max_restarts: int = 3,
    rdzv_port: int = RDZV_PORT,
    rdzv_backend: str = "holdfast",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int | str = 3,
    spares: int = 0,
    **flags: Any,
) -> AppDef:
    """Run a script or module that survives lost nodes, with everything that Holdfast's agent can do.

    A node that is lost is replaced alone: the scheduler starts that replica again, up to max_retries times, and the
    others continue or wait, as the smallest size allows. Takes every flag of `holdfast launch` that suits a job.

    Args:
        script_args: Arguments of the script.
        script: Script to run on every worker.
        m: Python module to run instead of a script.
        image: Image to run in, if the scheduler uses images.
        name: Name of the job, or experiment/name; by default that of the script.
        h: Named resource of each node; it replaces cpu, gpu and memMB.
        cpu: CPUs of each node.
        gpu: GPUs of each node.
        memMB: Memory of each node, in MB.
        j: Size of the job, [[min:]nodes x]workers per node, as in 4, 2x4 or 1:4x8.
        env: Environment variables of the script.
        metadata: Notes for the scheduler.
        max_retries: How often the scheduler may start a lost replica again.
        max_restarts: How often the agents may restart the workers.
        rdzv_port: Port on the first node where nodes meet.
        rdzv_backend: How nodes meet.
        rdzv_conf: Further settings of the rendezvous, as in join_timeout=900.
        mounts: Mounts, as in type=bind,src=/data,dst=/data,readonly.
        debug: Make torch log more and fail at the right place; training is slower.
        tee: What goes to log files and the console: 1 stdout, 2 stderr, 3 both, 0 straight to the console.
        spares: Nodes beyond the largest size that stand by to take a lost one's place.
    """
    flags |= {
        "rdzv_backend": rdzv_backend,
        "rdzv_conf": rdzv_conf,
        "max_restarts": max_restarts,
        "tee": tee,
        "spares": spares or None,
    }
    role = _role(image, env, debug, max_retries, resource(cpu, gpu, memMB, h), mounts)
    role.retry_policy = RetryPolicy.REPLICA
    size = parse_size(j)
    return _job(script, m, script_args, size, flags, role, elastic, name=name, port=rdzv_port, metadata=metadata)


def parse_size(text: str) -> Size:
    """Read `-j`: `[[min:]nodes x]workers`; raises `UsageError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"-j '{text}' must be [[MIN:]NODES x]WORKERS, as in 4, 2x4 or 1:4x8")
    high = int(match["high"] or 1)
    return _checked(text, Size(int(match["low"] or high), high, int(match["workers"])))


def _by_gpus(text: str, machine: str, gpus: int) -> Size:
    """Read `-j` without workers: as many as there are GPUs."""
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"-j '{text}' must be [MIN:]NODES or [MIN:]NODESxWORKERS, as in 2, 1:4 or 2x8")
    if gpus < 1:
        raise UsageError(f"-j '{text}' says no number of workers and {machine} has no GPUs; write -j {text}x1")
    return _checked(text, Size(int(match["low"] or match["high"]), int(match["high"]), gpus))


def _checked(text: str, size: Size) -> Size:
    if not 1 <= size.low <= size.high or size.workers < 1:
        raise UsageError(f"-j '{text}' must have 1 <= MIN <= NODES and at least one worker")
    return size


def _size(size: Size, flags: dict[str, Any]) -> Size:
    """Take the nodes from `--nnodes` where it is given; a launch reads `--nproc-per-node` itself."""
    nnodes = flags.get("nnodes")
    if nnodes is None:
        return size
    match = _NODES.fullmatch(nnodes.strip())
    if match is None or not 1 <= int(match["low"] or match["high"]) <= int(match["high"]):
        raise UsageError(f"--nnodes '{nnodes}' must be a number or MIN:MAX, as in 4 or 2:4")
    return size._replace(low=int(match["low"] or match["high"]), high=int(match["high"]))


def _role(
    image: str, env: dict[str, str] | None, debug: bool, max_retries: int, machine: Resource, mounts: list[str] | None
) -> Role:
    """Make a role of what all three components take; `_job` fills in the rest."""
    return Role(
        "",
        image,
        env={**(DEBUG_ENV if debug else {}), **(env or {})},
        max_retries=max_retries,
        resource=machine,
        mounts=parse_mounts(mounts or []),
    )


def _job(
    script: str | None,
    m: str | None,
    args: tuple[str, ...],
    size: Size,
    given: dict[str, Any],
    role: Role,
    component: Callable[..., AppDef],
    *,
    name: str,
    port: int = RDZV_PORT,
    metadata: dict[str, str] | None,
) -> AppDef:
    """Fill in the role: how many replicas, and the command that starts an agent on each."""
    if (script is None) == (m is None):
        raise UsageError("give either --script, a file to run, or -m, a module to run")
    experiment, _, run = name.rpartition("/")
    role.name = get_role_name(script, m)
    role.env.setdefault("TORCHX_TRACKING_EXPERIMENT_NAME", experiment or DEFAULT_EXPERIMENT)
    size = _size(size, given)
    flags = launch_words(given, role.env, defaults_of(component))
    role.num_replicas = size.high + (given.get("spares") or 0)
    role.min_replicas = size.low if size.low < role.num_replicas else None
    role.port_map = {"c10d": port}
    words = [*_fixed_words(size, flags), *flags, *_entry(script, m, args)]
    if role.num_replicas == 1:
        role.entrypoint, role.args = "python", [*LAUNCH, *_alone(flags), *words]
    else:
        role.entrypoint, role.args = "sh", ["-c", _together(words, port)]
    return AppDef(run or role.name, [role], dict(metadata or {}))


def _fixed_words(size: Size, flags: list[str]) -> list[str]:
    """Say what every job says, unless a flag says it already."""
    words = [] if "--nnodes" in flags else ["--nnodes", size.nnodes]
    words += [] if "--nproc-per-node" in flags else ["--nproc-per-node", str(size.workers)]
    # The scheduler says which role a line is of.
    return [*words, "--rdzv-id", macros.app_id, "--role", ""]


def _entry(script: str | None, m: str | None, args: tuple[str, ...]) -> list[str]:
    """Say what is run. A launch drops one `--`, so a script that is to get one is put behind another."""
    guard = ["--"] if args[:1] == ("--",) or str(script).startswith("-") else []
    return [*(["-m"] if m is not None else []), *guard, str(script) if m is None else m, *args]


def _alone(flags: list[str]) -> list[str]:
    """Meet at a free port; the static backend needs to be told nothing."""
    static = "--rdzv-backend" in flags and flags[flags.index("--rdzv-backend") + 1] == "static"
    return [] if static else ["--rdzv-endpoint", "localhost:0"]


def _together(words: list[str], port: int) -> str:
    """Meet at the first node, whose address is in a variable that only the scheduler knows the name of.

    Doubled dollar signs are for the shell; the others are macros, which are filled in before. Nodes ask for the ranks
    of their replicas, so that people find rank 0 in replica 0.
    """
    where = f"$${{{PORT_VARIABLE}:-{port}}}" if port == RDZV_PORT else str(port)
    endpoint = f'"$${{{macros.rank0_env}:=localhost}}:{where}"'
    meeting = f"--rdzv-endpoint {endpoint} --node-rank {macros.replica_id}"
    return f"exec python {shlex.join(LAUNCH)} {meeting} {shlex.join(words)}"


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """Read `-j`: the least nodes, the most nodes, workers on each, and what `--nnodes` takes."""
    size = parse_size(j)
    return size.low, size.high, size.workers, size.nnodes


def get_role_name(script: str | None, m: str | None) -> str:
    """Name the role after what it runs, in letters that every scheduler takes."""
    bare = m.rpartition(".")[2] if m is not None else PurePath(str(script)).stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", bare).strip("-") or "script"


# -- for components of others that write a line of shell -----------------------------------------------------------


class _noquote(str):  # noqa: N801 - the name that components are written with
    """Text that `_args_join` leaves alone, for a shell to expand."""

    __slots__ = ()


def _args_join(args: Iterable[str]) -> str:
    """Join words for a shell, each in quotes where it needs them."""
    return " ".join(arg if isinstance(arg, _noquote) else shlex.quote(arg) for arg in args)
