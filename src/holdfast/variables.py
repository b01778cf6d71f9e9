"""Every environment variable that has a meaning here: docs/VARIABLES.md is made from this table. Pure.

The constants that hold these names are in the modules that read them; a test compares both.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """Variables that are explained together, by what they say."""

    names: tuple[str, ...]
    text: str


def _variable(names: str, text: str) -> Variable:
    return Variable(tuple(names.split()), text)


#: What users may set.
SETTABLE = (
    _variable(
        "HOLDFAST_HOME",
        "the state folder: jobs, the list of journals, submitted functions, this user's own secret. By "
        "default `$XDG_STATE_HOME/holdfast`, or `~/.local/state/holdfast`; where neither can be written, "
        "a private folder below `$TMPDIR`",
    ),
    _variable(
        "HOLDFAST_CONFIG",
        "a settings file to read instead of `.holdfast.toml`; `TORCHXCONFIG` does the same for TorchX's format",
    ),
    _variable(
        "HOLDFAST_SECRET_FILE HOLDFAST_SECRET",
        "the secret that nodes share, as a file or as text; see [security](SECURITY.md)",
    ),
    _variable(
        "HOLDFAST_INSECURE",
        "1 runs without a secret, as `--insecure` does",
    ),
    _variable(
        "HOLDFAST_TLS_CERT HOLDFAST_TLS_KEY HOLDFAST_TLS_CA",
        "the same as `--tls-cert`, `--tls-key` and `--tls-ca`",
    ),
    _variable(
        "HOLDFAST_ETCD_CACERT HOLDFAST_ETCD_CERT HOLDFAST_ETCD_KEY HOLDFAST_ETCD_USER HOLDFAST_ETCD_PASSWORD",
        "how to [reach etcd](howto/etcd.md#tls-and-a-user)",
    ),
    _variable(
        "HOLDFAST_METRICS HOLDFAST_EVENTS",
        "where metrics and events go; the same as `--metrics` and `--event-log-handler`",
    ),
    _variable(
        "HOLDFAST_HEALTH_HOSTS",
        "further host names that the health server answers to, separated by commas; `*` for all",
    ),
    _variable(
        "HOLDFAST_KEEP_JOBS HOLDFAST_KEEP_DAYS HOLDFAST_KEEP_BYTES",
        "how many finished local jobs are kept, for how many days, and how many bytes in total",
    ),
    _variable(
        "HOLDFAST_MEMORY_DIR",
        "where checkpoints in memory are kept",
    ),
    _variable(
        "HOLDFAST_COMPAT",
        "which other packages' names lead to Holdfast in this program and its workers: `all` for torchelastic, "
        "torchx and torch.distributed.elastic",
    ),
    _variable(
        "PET_*",
        "every flag of torchrun, as in `PET_NPROC_PER_NODE`; [OPTIONS.md](OPTIONS.md) lists them",
    ),
    _variable(
        "TORCHELASTIC_HEALTH_CHECK_PORT",
        "the port of the health server, the same as `--health-port`",
    ),
    _variable(
        "TORCHELASTIC_ENABLE_FILE_TIMER",
        "1 makes the agent watch the timers that workers set",
    ),
    _variable(
        "TORCHELASTIC_TIMER_FILE",
        "the pipe for those timers; by default one in a folder of the agent's own",
    ),
    _variable(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "what stands before each line of a worker, the same as `--log-prefix`",
    ),
    _variable(
        "TORCHELASTIC_ETCD_BINARY_PATH",
        "the etcd that `EtcdServer` of `torch.distributed.elastic` starts under `holdfast.compat`",
    ),
    _variable(
        "PYTHON_EXEC",
        "the interpreter of workers; by default that of the launch",
    ),
    _variable(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        "seconds from SIGTERM to SIGKILL, the same as `--shutdown-timeout`",
    ),
    _variable(
        "TORCHX_TRACKERS",
        "the trackers of jobs",
    ),
    _variable(
        "LOGLEVEL",
        "`DEBUG` to `ERROR`: log lines on stderr, and tracebacks of errors of the system",
    ),
    _variable(
        "NO_COLOR",
        "set to anything: no colours",
    ),
)

#: What a worker finds, besides torchrun's.
FOUND = (
    _variable(
        "HOLDFAST_ROUND",
        "the number of the round in which the worker was started",
    ),
    _variable(
        "HOLDFAST_MAX_WORKERS",
        "how many workers the run may have if all nodes come",
    ),
    _variable(
        "HOLDFAST_JOB_ID",
        "the handle of the job, where there is one; `TORCHX_JOB_ID` says the same",
    ),
    _variable(
        "HOLDFAST_PARENT_RUN_ID",
        "the run that the job belongs to",
    ),
    _variable(
        "HOLDFAST_ROLE HOLDFAST_REPLICA_ID HOLDFAST_RESTART_COUNT",
        "which replica of a local job this is, and how often it was started again",
    ),
    _variable(
        "HOLDFAST_CALL_FOLDER",
        "where a function that was [submitted](howto/submit-functions.md) and its results are kept",
    ),
)

#: What torchrun's workers find, and ours too; some with a remark.
TORCHRUNS = {
    "RANK": "",
    "LOCAL_RANK": "",
    "WORLD_SIZE": "",
    "LOCAL_WORLD_SIZE": "",
    "GROUP_RANK": "",
    "GROUP_WORLD_SIZE": "",
    "ROLE_RANK": "",
    "ROLE_WORLD_SIZE": "",
    "ROLE_NAME": "",
    "MASTER_ADDR": "",
    "MASTER_PORT": "",
    "TORCHELASTIC_RUN_ID": "",
    "TORCHELASTIC_RESTART_COUNT": "",
    "TORCHELASTIC_MAX_RESTARTS": "",
    "TORCHELASTIC_USE_AGENT_STORE": "",
    "TORCHELASTIC_ERROR_FILE": "",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1 unless set",
    "OMP_NUM_THREADS": "1 unless set, for several workers on a node",
}

#: What Holdfast's own processes tell each other.
INTERNAL = _variable(
    "HOLDFAST_CHAOS_FOLDER HOLDFAST_ENDPOINT HOLDFAST_ETCD HOLDFAST_FAULT_FILE HOLDFAST_GANG "
    "HOLDFAST_HEARTBEAT_FILE HOLDFAST_HEARTBEAT_SLOT HOLDFAST_LOCAL_RDZV_PORT "
    "HOLDFAST_MEMBER_FILE HOLDFAST_METRICS_SOCKET HOLDFAST_STACKS_FILE HOLDFAST_STANDBY "
    "HOLDFAST_STORE_SPACE HOLDFAST_VAULT",
    "An agent tells its workers by these where to find it",
)
#: The same between a scheduler and the nodes of a job.
SCHEDULERS = _variable(
    "HOLDFAST_JOB_FOLDER HOLDFAST_SLURM_JOB HOLDFAST_SLURM_RUN HOLDFAST_SLURM_FIRST HOLDFAST_SLURM_PORT",
    "A scheduler tells the nodes of a job by these which it is",
)


def all_names() -> frozenset[str]:
    """Return every name in the table."""
    groups = (*SETTABLE, *FOUND, INTERNAL, SCHEDULERS)
    return frozenset(name for group in groups for name in group.names) | set(TORCHRUNS)
