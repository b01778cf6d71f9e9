"""Every flag of a launch: its name, type, default, meaning and variable, each written once. Pure.

`LaunchOptions` is the table: a field is a flag. The options of `holdfast launch` and `holdfast run`, the arguments of
the components in `dist`, torchrun's parser in `compat` and docs/OPTIONS.md are made from it. Within a group the flags
that are used most come first, and every list shows them in this order.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from holdfast.launcher.words import Flag


class Group(enum.Enum):
    """What a flag is about; the headings under which help shows the flags."""

    NODES = "Nodes"
    PROGRAM = "Program"
    FAILURES = "Failures"
    OUTPUT = "Logs"
    TOLD = "Metrics, events and health"


@dataclass(frozen=True, slots=True)
class Option:
    """One flag."""

    name: str
    type: type
    default: Any
    group: Group
    help: str
    #: Whether torchrun has it too. A prefix that is enough for torchrun never means a flag of ours.
    torchrun: bool = False
    #: The variable that sets it where the flag is not given.
    variable: str = ""
    short: str = ""
    #: The only values there are; empty if any will do.
    values: tuple[str, ...] = ()
    #: The least number.
    least: float | None = None
    #: What holds where the default is empty.
    otherwise: str = ""
    #: The name of the rendezvous setting behind it; empty if there is none.
    setting: str = ""
    #: Why a job does not take it; empty if it does.
    not_in_jobs: str = ""
    #: Whether it is one of the ten that people use first: help shows them before all others, or alone.
    common: bool = False

    @property
    def flag(self) -> str:
        """How it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_flag(self) -> bool:
        """Whether it stands alone, without a value."""
        return self.type is bool

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times."""
        return self.type is tuple

    @property
    def shown_default(self) -> str:
        """What help says of its default; empty if there is nothing to say."""
        return self.otherwise or ("" if self.is_flag or self.default in (None, "", ()) else str(self.default))


def _option(default: Any, group: Group, text: str, **more: Any) -> Any:
    """Declare a flag; the field's name and type are the flag's."""
    return field(default=default, metadata={"group": group, "help": text, **more})


#: Why jobs do not take some flags.
_BY_JOB = "the job's scheduler decides where its nodes meet"
_BY_REPLICA = "every replica of a job has its own"
_BY_NAME = "a job's run id is the job's id; --name chooses how it begins"


@dataclass(frozen=True)
class LaunchOptions:
    """The flags of a launch, as a user typed them."""

    nproc_per_node: str = _option(
        "1",
        Group.NODES,
        "Workers on this node: a number, auto, cpu, gpu, xpu, or the name of torch's private backend.",
        torchrun=True,
        common=True,
    )
    nnodes: str = _option("1:1", Group.NODES, "Number of nodes, N or MIN:MAX.", torchrun=True, common=True)
    standalone: bool = _option(
        False,
        Group.NODES,
        "Run on this node alone, with a coordinator of its own on a free port.",
        torchrun=True,
        not_in_jobs=_BY_JOB,
    )
    rdzv_endpoint: str = _option(
        "",
        Group.NODES,
        "Where nodes meet: host[:port], port 29400 by default.",
        torchrun=True,
        not_in_jobs=_BY_JOB,
        common=True,
    )
    rdzv_id: str = _option(
        "none",
        Group.NODES,
        "The run's id, the same on all nodes. A single node without one gets a fresh id.",
        torchrun=True,
        not_in_jobs=_BY_NAME,
        common=True,
    )
    rdzv_backend: str = _option(
        "",
        Group.NODES,
        "How nodes meet: holdfast (c10d means the same), static, etcd, or a plugin's name.",
        torchrun=True,
        otherwise="holdfast with an endpoint or a range of nodes, else static; not used with a single node",
    )
    rdzv_conf: str = _option("", Group.NODES, "Further settings of the backend: key=value,key=value.", torchrun=True)
    node_rank: int | None = _option(
        None,
        Group.NODES,
        "This node's rank: required order with the static backend, a preference with others.",
        torchrun=True,
        setting="node_rank",
        not_in_jobs=_BY_REPLICA,
    )
    master_addr: str | None = _option(
        None,
        Group.NODES,
        "Static backend: address of the node with rank 0.",
        torchrun=True,
        otherwise="127.0.0.1",
        not_in_jobs=_BY_JOB,
    )
    master_port: int | None = _option(
        None, Group.NODES, "Static backend: port there.", torchrun=True, otherwise="29500", not_in_jobs=_BY_JOB
    )
    local_addr: str | None = _option(
        None,
        Group.NODES,
        "This node's address, as other nodes reach it.",
        torchrun=True,
        otherwise="the one by which it reaches the coordinator",
        not_in_jobs=_BY_REPLICA,
    )
    role: str = _option(
        "default",
        Group.NODES,
        "Name of this node's workers' role.",
        torchrun=True,
        not_in_jobs="the component names the role",
    )
    join_timeout: str | None = _option(
        None,
        Group.NODES,
        "How long to wait for the other nodes, as in 10m.",
        otherwise="10m",
        setting="join_timeout",
    )
    last_call: str | None = _option(
        None,
        Group.NODES,
        "How long the first round waits for more than MIN nodes.",
        otherwise="30s",
        setting="last_call_timeout",
    )
    lease: str | None = _option(
        None,
        Group.NODES,
        "Silence after which a node counts as dead; may be a fraction.",
        otherwise="5s",
        setting="lease",
    )
    admit: str | None = _option(
        None,
        Group.NODES,
        "When a late node is admitted: at-once, restart, or every:TIME.",
        otherwise="at-once",
        setting="admit",
    )
    spares: int | None = _option(
        None, Group.NODES, "How many nodes beyond MAX may stand by; further nodes are refused.", setting="spares"
    )
    secret_file: str | None = _option(
        None,
        Group.NODES,
        "File with the secret that all nodes share.",
        setting="secret_file",
        otherwise="$HOLDFAST_SECRET_FILE, $HOLDFAST_SECRET, or this user's own; see `holdfast secret`",
    )
    insecure: bool = _option(
        False,
        Group.NODES,
        "Run without a shared secret: anyone who reaches the port can join.",
        setting="insecure",
    )
    require_secret: bool = _option(
        False, Group.NODES, "Refuse to run without a shared secret (the default).", setting="require_secret"
    )
    tls_cert: str | None = _option(
        None, Group.NODES, "Certificate of this node (PEM).", variable="HOLDFAST_TLS_CERT", setting="tls_cert"
    )
    tls_key: str | None = _option(
        None, Group.NODES, "Its private key (PEM).", variable="HOLDFAST_TLS_KEY", setting="tls_key"
    )
    tls_ca: str | None = _option(
        None,
        Group.NODES,
        "Certificate authority that signed every node's certificate (PEM).",
        variable="HOLDFAST_TLS_CA",
        setting="tls_ca",
    )

    module: bool = _option(
        False, Group.PROGRAM, "The script is the name of a Python module.", torchrun=True, short="-m", common=True
    )
    no_python: bool = _option(
        False, Group.PROGRAM, "The script is any program; do not run it with Python.", torchrun=True
    )
    preload: str = _option(
        "auto",
        Group.PROGRAM,
        "Modules to import once and fork workers from, as in torch,numpy; auto finds them in the script, "
        "and starts the first workers without waiting for them; none is off.",
        common=True,
    )
    keep_warm: str | None = _option(
        None,
        Group.PROGRAM,
        "Keep what was preloaded for so long, as in 10m, for the next launch of the same kind; see `holdfast warm`.",
        not_in_jobs="a job leaves no process behind",
    )
    standby: int = _option(
        0,
        Group.PROGRAM,
        "Processes on each node that have imported everything, and opened a GPU, and wait to replace workers.",
        least=0,
    )
    virtual_local_rank: bool = _option(
        False, Group.PROGRAM, "Each worker sees LOCAL_RANK=0 and one GPU of its own.", torchrun=True
    )
    numa_binding: str | None = _option(
        None,
        Group.PROGRAM,
        "Bind workers to CPUs near their GPUs.",
        torchrun=True,
        values=("node", "socket", "exclusive", "core-complex"),
    )
    compat: bool = _option(
        False,
        Group.PROGRAM,
        "In the workers, make torch.distributed.elastic, torchx and torchelastic mean Holdfast's modules.",
    )
    start_method: str = _option(
        "spawn",
        Group.PROGRAM,
        "How functions are started; not used for scripts.",
        torchrun=True,
        values=("spawn", "fork", "forkserver"),
        not_in_jobs="jobs run scripts, and it is for functions",
    )
    run_path: bool = _option(
        False,
        Group.PROGRAM,
        "Accepted because torchrun has it; scripts are always run by path.",
        torchrun=True,
        not_in_jobs="it changes nothing",
    )

    max_restarts: int = _option(0, Group.FAILURES, "Restarts of the whole job.", torchrun=True, least=0, common=True)
    hang: str = _option(
        "off",
        Group.FAILURES,
        "Find, explain and restart workers that hang: off, auto, or a time (90s) without a call of "
        "holdfast.heartbeat(), or, in scripts that never call it, without any activity of any worker; "
        "after a colon, how long the first call may take (auto:30m).",
        common=True,
    )
    vault: bool = _option(
        False,
        Group.FAILURES,
        "Keep checkpoints in this node's memory, and copies of its neighbours' checkpoints.",
    )
    restart_backoff: str | None = _option(
        None, Group.FAILURES, "Pause before a restart, doubling: FIRST or FIRST:MAX, as in 1s:60s."
    )
    crash_loop: int | None = _option(
        None,
        Group.FAILURES,
        "End with exit code 93 after this many failures in a row without progress.",
        least=1,
        setting="crash_loop",
    )
    reset_restarts: bool = _option(
        False, Group.FAILURES, "After progress, all restarts are available again.", setting="reset_restarts"
    )
    progress_after: str | None = _option(
        None,
        Group.FAILURES,
        "A round that lasted this long has made progress.",
        otherwise="60s",
        setting="progress_after",
    )
    half_finished_after: str | None = _option(
        None, Group.FAILURES, "Report where workers hang this long after others have finished."
    )
    shutdown_timeout: float | None = _option(
        None,
        Group.FAILURES,
        "Seconds from SIGTERM to SIGKILL.",
        torchrun=True,
        least=0,
        otherwise="30, or $TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    )
    exit_barrier_timeout: str = _option("300s", Group.FAILURES, "How long to wait for the other nodes after success.")
    signals_to_handle: str = _option(
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT", Group.FAILURES, "Signals that end this node cleanly.", torchrun=True
    )
    forward_signals: str = _option("", Group.FAILURES, "Signals forwarded to the workers without ending, as in USR1.")
    monitor_interval: float = _option(
        0.1, Group.FAILURES, "Seconds between two polls of a backend that does not push.", torchrun=True
    )

    log_dir: str | None = _option(
        None,
        Group.OUTPUT,
        "Folder for logs; each run makes a new one inside it.",
        torchrun=True,
        otherwise="a temporary folder",
        common=True,
    )
    tee: str = _option(
        "0",
        Group.OUTPUT,
        "Write to files and to the console: 0 none, 1 stdout, 2 stderr, 3 both; by local rank: 0:3,1:1.",
        torchrun=True,
        short="-t",
        common=True,
    )
    redirects: str = _option("0", Group.OUTPUT, "Write to files only; values as for --tee.", torchrun=True, short="-r")
    local_ranks_filter: str = _option(
        "", Group.OUTPUT, "Show only these local ranks on the console, as in 0,1.", torchrun=True
    )
    log_prefix: str | None = _option(
        None, Group.OUTPUT, "Prefix of teed lines, with ${role_name} ${rank} ${local_rank} ${hostname}."
    )
    log_size_limit: str | None = _option(None, Group.OUTPUT, "Largest size of one log file, as in 100M.")
    duplicate_stdout_filters: str = _option(
        "", Group.OUTPUT, "Copy stdout lines with these words to filtered_stdout.log.", torchrun=True
    )
    duplicate_stderr_filters: str = _option(
        "", Group.OUTPUT, "Copy stderr lines with these words to filtered_stderr.log.", torchrun=True
    )
    logs_specs: str | None = _option(None, Group.OUTPUT, "Entry point of a LogsSpecs class.", torchrun=True)

    quiet: bool = _option(False, Group.TOLD, "Print nothing unless the job fails.", short="-q")
    json: bool = _option(False, Group.TOLD, "Print what happens as JSON lines on stderr.")
    metrics: tuple[str, ...] = _option(
        (),
        Group.TOLD,
        "Where metrics go: console, jsonl:PATH, prometheus, otlp:ENDPOINT, statsd:HOST:PORT, a plugin's name; "
        "several by comma or by repeating; GROUP=SINK for one group alone.",
        otherwise="$HOLDFAST_METRICS",
    )
    event_log_handler: str = _option(
        "",
        Group.TOLD,
        "Where events go: null, console, jsonl:PATH, otlp:ENDPOINT, a plugin's name; several by comma.",
        torchrun=True,
        otherwise="$HOLDFAST_EVENTS or null",
    )
    health_port: str = _option(
        "",
        Group.TOLD,
        "Answer /healthz, /readyz, /status and /metrics on this port, or HOST:PORT; 0 picks one.",
        variable="TORCHELASTIC_HEALTH_CHECK_PORT",
    )
    health_timeout: str | None = _option(
        None,
        Group.TOLD,
        "Silence of the agent after which /healthz says 503, as in 5m.",
        otherwise="60s",
    )

    script: str = ""
    script_args: tuple[str, ...] = ()


def _read_table() -> Iterator[Option]:
    hints = typing.get_type_hints(LaunchOptions)
    for each in fields(LaunchOptions):
        if each.metadata:
            more = dict(each.metadata)
            if more.get("torchrun"):
                more.setdefault("variable", f"PET_{each.name.upper()}")
            yield Option(each.name, _bare(hints[each.name]), each.default, **more)


def _bare(hint: Any) -> type:
    """Return the type of a value that is given: `str` for `str | None`."""
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    bare: type = typing.get_origin(hint) or hint
    return bare


#: Every flag by its name, in the order of help.
OPTIONS = {option.name: option for option in _read_table()}
#: The flags that a job's user chooses; the others are the component's and the scheduler's.
JOB_OPTIONS = {name: option for name, option in OPTIONS.items() if not option.not_in_jobs}

#: The same as torchrun's parser meets them: by every spelling, torchrun's own before ours.
FLAGS = {
    spelling: Flag(option.flag, takes_value=not option.is_flag, tier=0 if option.torchrun else 1)
    for option in OPTIONS.values()
    for spelling in filter(None, (option.flag, option.short))
} | dict.fromkeys(("-h", "--help"), Flag("--help", takes_value=False))


def words_of(options: typing.Mapping[str, Any]) -> list[str]:
    """Write flags as the words of a command line; what is None, False or empty is left out."""
    words: list[str] = []
    for name, value in options.items():
        flag = OPTIONS[name].flag
        if value is True:
            words.append(flag)
        elif isinstance(value, tuple):
            words += [word for each in value for word in (flag, str(each))]
        elif value is not None and value is not False:
            text = str(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words
