"""`holdfast launch`: torchrun's command line, and what it cannot do."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.levels import log_level
from holdfast.errors import HoldfastError, InternalError, UsageError
from holdfast.launcher import lastwords
from holdfast.launcher.api import run_agent
from holdfast.launcher.config import LaunchOptions, config_from_options
from holdfast.launcher.screen import Screen
from holdfast.wire.descriptors import raise_limit
from holdfast.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE
from holdfast.workers import LogsSpecs

#: With less room than this a disk counts as full: no line of a log fits.
DISK_BYTES_MIN = 4096

F = TypeVar("F", bound=Callable[..., Any])


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option that can also be set by torchrun's environment variable, PET_<NAME>."""
    variable = "PET_" + name.lstrip("-").upper().replace("-", "_")
    extra = settings.pop("also", ())
    return click.option(name, *extra, envvar=variable, **settings)


@click.command(
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
    }
)
@click.argument("script", required=False, default="")
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED)
# -- who takes part
@_option("--nnodes", default="1:1", show_default=True, help="Number of nodes, N or MIN:MAX.")
@_option("--nproc-per-node", default="1", show_default=True, help="Workers on this node: a number, auto, cpu or gpu.")
@_option("--standalone", is_flag=True, help="One node alone: a coordinator of its own on a free port.")
@_option(
    "--rdzv-backend",
    default="",
    help="How nodes meet: holdfast (c10d means the same), static, or a plugin's name.  "
    "[default: holdfast with an endpoint or a range of nodes, else static; one node alone meets nobody]",
)
@_option("--rdzv-endpoint", default="", help="Where nodes meet: host[:port], port 29400 by default.")
@_option("--rdzv-id", default="none", show_default=True, help="The run's id; all nodes give the same.")
@_option("--rdzv-conf", default="", help="Further settings of the backend: key=value,key=value.")
@_option("--node-rank", type=int, help="This node's rank; binding with the static backend, a wish with others.")
@_option("--master-addr", help="Static backend: address of the node with rank 0.  [default: 127.0.0.1]")
@_option("--master-port", type=int, help="Static backend: port there.  [default: 29500]")
@_option("--local-addr", help="This node's address for others; by default the one it reaches the coordinator by.")
@_option("--role", default="default", show_default=True, help="Name of this node's workers' role.")
@click.option("--join-timeout", help="How long to wait for the other nodes, as in 10m.  [default: 600]")
@click.option("--last-call", help="How long a first gathering waits for more than MIN nodes.  [default: 30]")
@click.option("--lease", help="Silence after which a node counts as dead; may be a fraction.  [default: 5]")
@click.option("--admit", help="When a late node gets in: at-once, restart, or every:TIME.  [default: at-once]")
@click.option("--spares", type=int, help="How many nodes beyond MAX may stand by; more are turned away.")
@click.option("--secret-file", help="File with the secret that all nodes share.")
@click.option("--require-secret", is_flag=True, help="Refuse to run without a shared secret.")
@click.option("--tls-cert", envvar=CERT_VARIABLE, help="Certificate of this node (PEM).")
@click.option("--tls-key", envvar=KEY_VARIABLE, help="Its private key (PEM).")
@click.option("--tls-ca", envvar=CA_VARIABLE, help="Authority that every node's certificate comes from (PEM).")
# -- what is run
@_option("--module", also=("-m",), is_flag=True, help="The script is the name of a Python module.")
@_option("--no-python", is_flag=True, help="The script is any program; do not run it with Python.")
@_option("--run-path", is_flag=True, help="Accepted for torchrun's sake; scripts are always run by path.")
@_option(
    "--start-method",
    type=click.Choice(["spawn", "fork", "forkserver"]),
    default="spawn",
    show_default=True,
    help="How functions are started; scripts have no use for it.",
)
@_option("--virtual-local-rank", is_flag=True, help="Each worker sees LOCAL_RANK=0 and one GPU of its own.")
@_option("--numa-binding", help="Bind workers to CPUs: node, socket, exclusive or core-complex.")
@click.option(
    "--preload",
    default="auto",
    show_default=True,
    help="Modules to import once and fork workers from, as in torch,numpy; auto looks at the script; none is off.",
)
@click.option(
    "--compat",
    is_flag=True,
    help="Let torch.distributed.elastic, torchx and torchelastic lead to Holdfast in the workers.",
)
# -- failures
@_option("--max-restarts", type=click.IntRange(0), default=0, show_default=True, help="Restarts of the whole job.")
@click.option("--restart-backoff", help="Pause before a restart, doubling: FIRST or FIRST:MAX, as in 1s:60s.")
@click.option("--progress-after", help="A round that lasted this long has made progress.  [default: 60]")
@click.option("--reset-restarts", is_flag=True, help="Progress gives the used restarts back.")
@click.option(
    "--crash-loop",
    type=click.IntRange(1),
    help="End with exit code 93 after so many failures in a row without progress.",
)
@_option("--monitor-interval", type=float, default=0.1, show_default=True, help="Only polled backends need it.")
@_option("--shutdown-timeout", type=click.FloatRange(min=0), help="Seconds from SIGTERM to SIGKILL.  [default: 30]")
@click.option("--exit-barrier-timeout", default="300", show_default=True, help="Wait for the others after success.")
@click.option("--half-finished-after", help="Report where workers hang this long after others have finished.")
@click.option("--vault", is_flag=True, help="Keep checkpoints in this node's memory, and copies of its neighbours'.")
@click.option(
    "--hang",
    default="off",
    show_default=True,
    help="Restart workers that stop calling holdfast.heartbeat(), and say where they hang: off, auto, or a time (90s); "
    "behind a colon, how long the first call may take (auto:30m).",
)
@_option(
    "--signals-to-handle",
    default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    show_default=True,
    help="Signals that end this node politely.",
)
@click.option("--forward-signals", default="", help="Signals passed on to the workers without ending, as in USR1.")
# -- output
@_option("--log-dir", help="Folder for logs; a fresh one inside it for each run.  [default: a temporary folder]")
@_option("--redirects", also=("-r",), default="0", show_default=True, help="To files: 0 none, 1 out, 2 err, 3 both.")
@_option("--tee", also=("-t",), default="0", show_default=True, help="To files and console; also by rank: 0:3,1:1.")
@_option("--local-ranks-filter", default="", help="Show only these local ranks on the console, as in 0,1.")
@_option("--duplicate-stdout-filters", default="", help="Copy stdout lines with these words to filtered_stdout.log.")
@_option("--duplicate-stderr-filters", default="", help="The same for stderr.")
@_option("--logs-specs", help="Entry point of a LogsSpecs class.")
# -- what is told
@_option(
    "--event-log-handler",
    default="",
    help="Where events go: null, console, jsonl:PATH, otlp:ENDPOINT, a plugin's name; several by comma.  "
    "[default: $HOLDFAST_EVENTS or null]",
)
@click.option(
    "--metrics",
    multiple=True,
    help="Where metrics go: console, jsonl:PATH, prometheus, otlp:ENDPOINT, statsd:HOST:PORT, a plugin's name; "
    "several by comma or by repeating; GROUP=SINK for one group alone.  [default: $HOLDFAST_METRICS]",
)
@click.option(
    "--health-port",
    default="",
    envvar="TORCHELASTIC_HEALTH_CHECK_PORT",
    help="Answer /healthz, /readyz, /status and /metrics on this port, or HOST:PORT; 0 picks one.",
)
@click.option("--health-timeout", help="Silence of the agent after which /healthz says 503, as in 5m.  [default: 60]")
@click.option("--log-prefix", help="Prefix of teed lines, with ${role_name} ${rank} ${local_rank} ${hostname}.")
@click.option("--log-size-limit", help="Largest size of one log file, as in 100M.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but how a failure ended the job.")
@click.option("--json", "as_json", is_flag=True, help="Tell what happens as JSON lines on stderr.")
def command(quiet: bool, as_json: bool, compat: bool, script_args: tuple[str, ...], **flags: Any) -> None:
    """Run SCRIPT on every worker of this node, together with the other nodes, and keep it running.

    Takes torchrun's flags, with dashes or underscores, and its PET_* variables. Exits with the root cause's exit code,
    128+n for a signal.

    \b
      holdfast launch --nproc-per-node 2 train.py --lr 0.1
      holdfast launch --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 \\
          --rdzv-backend holdfast --rdzv-endpoint host-a:29400 --rdzv-id job7 train.py
    """
    if level := log_level():
        logging.basicConfig(level=level, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    else:
        logging.getLogger("holdfast").addHandler(logging.NullHandler())  # the screen says it all
        logging.getLogger("holdfast").propagate = False
    if compat:
        _lead_names()
    with Screen(quiet=quiet, as_json=as_json) as screen:
        config, entry = config_from_options(LaunchOptions(script_args=script_args, **flags))
        raise_limit()
        try:
            report = run_agent(config, entry, [])
        except (UsageError, InternalError):
            raise
        except HoldfastError as error:
            raise SystemExit(_fail(str(error))) from None
        screen.conclude(report)
        if report.exit_code and (full := full_disk(config.logs_specs)):
            click.echo(f"holdfast: {full}", err=True)
        lastwords.leave(report)
    sys.stdout.flush()
    sys.exit(report.exit_code)


def _lead_names() -> None:
    """Let the names of others lead to ours: here, for plugins, and in the workers."""
    from holdfast.compat import VARIABLE, install

    os.environ[VARIABLE] = "all"
    install()


def full_disk(logs: LogsSpecs | None) -> str:
    """Say so where the disk that holds the logs is full, which workers that failed for it may not have told."""
    try:
        folder = logs.root_log_dir if logs is not None else ""
        if folder and shutil.disk_usage(folder).free < DISK_BYTES_MIN:
            return f"the disk of {folder} is full; make room there, or name another place with --log-dir"
    except (OSError, UsageError):  # no log folder was made
        pass
    return ""


def _fail(sentence: str) -> int:
    click.echo(f"holdfast: {sentence}", err=True)
    lastwords.leave_sentence(sentence, 1)
    return 1
