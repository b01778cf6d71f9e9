"""The meaning of torchrun's flags: options in, a launch config and an entrypoint out."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast import plugins
from holdfast.agent.health import HEALTH_TIMEOUT_S
from holdfast.agent.options import LocalOptions
from holdfast.agent.signals import parse_signals
from holdfast.errors import UsageError
from holdfast.events.recording import spec_from
from holdfast.facts import facts
from holdfast.health import parse_health_port
from holdfast.launcher.api import Entrypoint, LaunchConfig
from holdfast.launcher.invitation import invitation
from holdfast.launcher.options import OPTIONS, LaunchOptions
from holdfast.launcher.slurm import within_step
from holdfast.launcher.slurm_address import reachable
from holdfast.metrics.chosen import check as check_metrics
from holdfast.metrics.source import METRICS_VARIABLE
from holdfast.quantities import parse_duration
from holdfast.rendezvous.settings import SETTINGS, parse_admit
from holdfast.timer.hang import HangOptions
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.workers import (
    AffinityMode,
    DefaultLogsSpecs,
    LogsSpecs,
    Module,
    NumaOptions,
    Program,
    Script,
    Std,
    guess,
    local_world_size,
)
from holdfast.workers.standbys import Opened

#: Backends whose settings are known here; no name means one of them.
OUR_BACKENDS = ("", "holdfast", "c10d", "static")
#: Settings that every backend gets, and the flag of each.
FLAGS_OF_THEIR_OWN = {
    "backend": "--rdzv-backend",
    "endpoint": "--rdzv-endpoint",
    "run_id": "--rdzv-id",
    "min_nodes": "--nnodes",
    "max_nodes": "--nnodes",
    "local_addr": "--local-addr",
}
LOGS_SPECS_GROUP = "torchrun.logs_specs"


def config_from_options(options: LaunchOptions) -> tuple[LaunchConfig, Script | Module | Program]:
    """Turn flags into what an agent needs; raises `UsageError` that names the flag."""
    parse_nnodes(options.nnodes)  # a mistake there is reported before one in the script's name
    options = within_step(options, os.environ, reachable)
    entry = entrypoint(options)
    return make_config(options, entry), entry


def make_config(options: LaunchOptions, entry: Entrypoint) -> LaunchConfig:
    """Make the config of a launch from its flags; raises `UsageError` that names the flag."""
    low, high = parse_nnodes(options.nnodes)
    metrics = options.metrics or tuple(filter(None, [os.environ.get(METRICS_VARIABLE, "")]))
    if any(choice.name == "prometheus" for choice in check_metrics(metrics)) and not options.health_port:
        facts.warn("unscraped", "--metrics prometheus is scraped from the health port: give --health-port as well")
    backend, endpoint, run_id = meeting_place(options, low, high)
    named_place = options.standalone or options.rdzv_endpoint or options.master_addr
    invite = "" if high == 1 or named_place else _invitation(options, backend, parse_endpoint(endpoint), high)
    return LaunchConfig(
        min_nodes=low,
        max_nodes=high,
        nproc_per_node=local_world_size(options.nproc_per_node),
        logs_specs=_logs_specs(options),
        run_id=run_id,
        role=options.role,
        rdzv_endpoint=endpoint,
        rdzv_backend=backend,
        rdzv_configs=_rendezvous_settings(options),
        max_restarts=options.max_restarts,
        monitor_interval=options.monitor_interval,
        start_method=options.start_method,
        log_line_prefix_template=options.log_prefix,
        local_addr=options.local_addr,
        event_log_handler=spec_from(options.event_log_handler),
        metrics=tuple(metrics),
        numa_options=_numa(options.numa_binding),
        signals_to_handle=options.signals_to_handle,
        duplicate_stdout_filters=split_filters(options.duplicate_stdout_filters),
        duplicate_stderr_filters=split_filters(options.duplicate_stderr_filters),
        virtual_local_rank=options.virtual_local_rank,
        shutdown_timeout=options.shutdown_timeout,
        exit_barrier_timeout=_time("--exit-barrier-timeout", options.exit_barrier_timeout),
        local_options=replace(_local_options(options, entry), invitation=invite),
    )


def _invitation(options: LaunchOptions, backend: str, where: Endpoint, nodes: int) -> str:
    """Say where the other nodes must connect: this launch waits for them, and has no endpoint."""
    if backend not in OUR_BACKENDS or not where.is_loopback:
        return ""
    entry = (options.script, *options.script_args)
    typed = tuple(sys.argv[2:]) if sys.argv[1:2] == ["launch"] else ()
    flags = typed[: -len(entry)] if typed[-len(entry) :] == entry else ("--nnodes", options.nnodes)
    ranks = range(nodes) if backend == "static" else None
    return invitation(flags, entry, where, socket.gethostname(), ranks, options.node_rank or 0)


def parse_nnodes(text: str) -> tuple[int, int]:
    """Read `N` or `MIN:MAX`."""
    match = re.fullmatch(r"\s*([0-9]+)\s*(?::\s*([0-9]+)\s*)?", text)
    if match is None:
        raise UsageError(f"--nnodes '{text}' must be a number or MIN:MAX, as in 4 or 2:4")
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if not 1 <= low <= high:
        raise UsageError(f"--nnodes '{text}' must have 1 <= MIN <= MAX, as in 4 or 2:4")
    return low, high


def entrypoint(options: LaunchOptions) -> Script | Module | Program:
    """Return what each worker runs."""
    if not options.script:
        raise UsageError("name the script to run, as in: holdfast launch --nproc-per-node 2 train.py")
    if options.no_python:
        if options.module:
            raise UsageError("--module and --no-python cannot be used together: leave one out")
        return Program((options.script, *options.script_args))
    if options.module:
        return Module(options.script, options.script_args)
    _check_script(options.script)
    return Script(options.script, options.script_args)


def _check_script(text: str) -> None:
    """Refuse a script that cannot run; better here than when all nodes have joined."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder is gone: change to one that exists") from None
    path = Path(text)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"'{text}' is a folder without a __main__.py: name the script in it")
    if text == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        raise UsageError(f"'{text}' can be read only once, and every worker reads its script: save it to a file first")
    if not path.exists():
        hint = "; use -m for a module or --no-python for a program" if "/" not in text else "; check the path"
        raise UsageError(f"there is no script '{text}' here{hint}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script '{text}' cannot be read by this user: chmod u+r may help")


def parse_config(text: str, flag: str = "--rdzv-conf") -> dict[str, str]:
    """Read `key=value,key=value`; quotes that a shell has left around the whole, a key or a value are dropped."""
    settings: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in _unquoted(text).split(","))):
        key, equals, value = (_unquoted(part) for part in _unquoted(pair).partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{flag} '{pair}' must be key=value; separate several with commas")
        settings[key] = value
    return settings


def _unquoted(text: str) -> str:
    """Drop the space around a text, and a pair of quotes around it."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1].strip()
    return text


def split_filters(text: str) -> list[str] | None:
    """Read a list separated by commas, where two commas stand for one that is meant; None where nothing is named."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",") if part] or None


def parse_preload(text: str, entry: Entrypoint) -> tuple[str, ...]:
    """Read `auto`, `none`, or names of modules; `auto` looks at the script's own imports."""
    text = text.strip()
    if text.lower() in ("none", "off", ""):
        return ()
    if text.lower() == "auto":
        return guess(entry.path) if isinstance(entry, Script) else ()
    if isinstance(entry, Program):
        raise UsageError("--preload needs a Python script or module; a program of --no-python cannot be forked warm")
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def parse_hang(text: str) -> HangOptions | None:
    """Read `off`, `auto` (the limit is learned) or the time that workers may be silent.

    A second time after a colon, as in `auto:30m`, is how long they may take to their first heartbeat.
    """
    word, _, start = text.strip().lower().partition(":")
    if word in ("off", "none", "no", "") and not start:
        return None
    try:
        return HangOptions(
            limit_s=None if word in ("auto", "on", "yes") else parse_duration(word),
            start_s=parse_duration(start) if start else None,
        )
    except UsageError:
        raise UsageError(
            f"--hang '{text}' must be off, auto, or a time such as 90s; "
            "one more for the start may follow, as in auto:30m"
        ) from None


def parse_bytes(text: str | None) -> int | None:
    """Read a size: `1000000`, `64K`, `10M`, `2G`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+)\s*([kmg]?)i?b?\s*", text.lower())
    if match is None:
        raise UsageError(f"--log-size-limit: '{text}' is not a size: write bytes, or 64K, 10M, 2G")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[match[2]]


def meeting_place(options: LaunchOptions, low: int, high: int) -> tuple[str, str, str]:
    """Decide backend, endpoint and run id; a single node needs no endpoint, and gets a new id if none was given."""
    backend = options.rdzv_backend
    alone = high == 1 and not options.rdzv_endpoint and options.master_port is None
    if options.standalone or (alone and backend in ("", "static")):
        given = options.rdzv_id not in ("", OPTIONS["rdzv_id"].default)
        return "holdfast", "localhost:0", options.rdzv_id if given else secrets.token_hex(8)
    if not backend:
        backend = "holdfast" if options.rdzv_endpoint or low != high else "static"
    if backend != "static":
        return backend, options.rdzv_endpoint, options.rdzv_id
    host = options.master_addr or "127.0.0.1"
    port = 29500 if options.master_port is None else options.master_port
    return backend, options.rdzv_endpoint or str(Endpoint(host, port)), options.rdzv_id


def _rendezvous_settings(options: LaunchOptions) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = dict(parse_config(options.rdzv_conf))
    for key in settings:
        if key in FLAGS_OF_THEIR_OWN:
            raise UsageError(f"--rdzv-conf: '{key}' is given by {FLAGS_OF_THEIR_OWN[key]}, not as a further setting")
    _warn_of_unknown(settings, options.rdzv_backend)
    for option in OPTIONS.values():
        value = getattr(options, option.name)
        if option.setting and value is not None and value is not False:
            settings[option.setting] = value
    if options.admit is not None:
        parse_admit(options.admit)
    settings["max_restarts"] = options.max_restarts
    return settings


def _warn_of_unknown(settings: Mapping[str, object], backend: str) -> None:
    """Warn of settings that our own backends do not know; a plugin's settings are not checked here."""
    for key in settings if backend in OUR_BACKENDS else ():
        if key not in SETTINGS:
            from difflib import get_close_matches  # only a mistake needs it

            close = get_close_matches(key, SETTINGS, n=1)
            hint = f"did you mean {close[0]}?" if close else "it is left out"
            facts.warn("setting_unknown", f"--rdzv-conf: there is no setting '{key}'; {hint}", setting=key)


def _logs_specs(options: LaunchOptions) -> LogsSpecs:
    ranks = _ranks(options.local_ranks_filter)
    arguments = {
        "log_dir": options.log_dir,
        "redirects": Std.from_str(options.redirects),
        "tee": Std.from_str(options.tee),
        "local_ranks_filter": ranks,
    }
    made: LogsSpecs = logs_specs_class(options.logs_specs)(**arguments)  # type: ignore[arg-type]
    return made


def logs_specs_class(name: str | None) -> type[LogsSpecs]:
    """Return the class that decides where logs go, by the name of its entry point."""
    if name in (None, "default"):  # torch, where it is installed, registers its own under that name
        return DefaultLogsSpecs
    found = {plugin.name: plugin for plugin in plugins.find(LOGS_SPECS_GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise UsageError(f"--logs-specs '{name}' is not an entry point of {LOGS_SPECS_GROUP}: {known}")
    made: type[LogsSpecs] = found[name].load()
    return made


def _ranks(text: str) -> set[int] | None:
    if not text:
        return None
    try:
        return {int(part) for part in text.split(",")}
    except ValueError:
        raise UsageError(f"--local-ranks-filter '{text}' must be numbers separated by commas, as in 0,1") from None


def _numa(text: str | None) -> NumaOptions | None:
    if text is None:
        return None
    try:
        return NumaOptions(AffinityMode(text))
    except ValueError:
        modes = ", ".join(mode.value for mode in AffinityMode)
        raise UsageError(f"--numa-binding '{text}' must be one of {modes}") from None


def _local_options(options: LaunchOptions, entry: Entrypoint) -> LocalOptions:
    backoff = (
        [_time("--restart-backoff", part) for part in options.restart_backoff.split(":")]
        if options.restart_backoff
        else [0.0]
    )
    preload = parse_preload(options.preload, entry)
    if options.standby and not preload:
        raise UsageError("--standby forks from preloaded modules, and there are none: name them, as in --preload torch")
    return LocalOptions(
        preload=preload,
        standbys=options.standby,
        standbys_open=_may_open(entry) if options.standby else frozenset(),
        keep_warm_s=_time("--keep-warm", options.keep_warm) if options.keep_warm else None,
        preload_first=options.preload.strip().lower() != "auto",
        backoff_s=backoff[0],
        backoff_s_max=backoff[1] if len(backoff) > 1 else max(60.0, backoff[0]),
        forward_signals=tuple(parse_signals(options.forward_signals)),
        log_bytes_max=parse_bytes(options.log_size_limit),
        half_finished_s=_time("--half-finished-after", options.half_finished_after)
        if options.half_finished_after
        else None,
        hang=parse_hang(options.hang),
        vault=options.vault,
        health=parse_health_port(options.health_port) if options.health_port else None,
        health_timeout_s=_health_timeout(options.health_timeout),
    )


def _may_open(entry: Entrypoint) -> frozenset[Opened]:
    """Return what standbys may open beforehand, because the program does nothing that would have had to come first."""
    from holdfast.workers.preload import program_sets  # few launches want standbys
    from holdfast.workers.variables import is_cuda_variable, is_nccl_variable

    if not isinstance(entry, Script) or program_sets(entry.path, is_cuda_variable):
        return frozenset()
    return frozenset({"gpu"} if program_sets(entry.path, is_nccl_variable) else {"gpu", "nccl"})


def _time(flag: str, text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def _health_timeout(text: str | None) -> float:
    if text is None:
        return HEALTH_TIMEOUT_S
    seconds = _time("--health-timeout", text)
    if seconds < 1:
        raise UsageError(f"--health-timeout '{text}' must be at least 1 second, as in 60s or 5m")
    return seconds
