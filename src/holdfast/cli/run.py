"""`holdfast run`: submit a job and follow it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from holdfast.cli.flags import given, preset, with_flags
from holdfast.cli.jobs import complete_components, complete_schedulers, prepare
from holdfast.errors import HoldfastError, UsageError
from holdfast.facts import facts
from holdfast.launcher.options import JOB_OPTIONS, OPTIONS
from holdfast.runner import config as configs
from holdfast.runner.api import Runner, get_runner

if TYPE_CHECKING:
    from holdfast.specs import AppDef, AppDryRunInfo, CfgVal, Role

#: The component that runs a script, and where it is when registered components hide the builtin ones.
SCRIPT_COMPONENT, SCRIPT_HOME = "dist.ddp", "holdfast.components.dist"
#: The settings of `holdfast run` in a settings file.
DEFAULTS = ("component", "scheduler", "workspace")
#: The default size of a script's job, the same as that of `holdfast launch`.
SHAPE = "1x1"
#: Longer lines are hard to read, so a wide terminal is not filled.
HELP_WIDTH_MAX = 100


@dataclass
class Order:
    """What to run and how, from the command line or from stdin."""

    component: str = ""
    arguments: list[str] | dict[str, Any] = field(default_factory=list)
    scheduler: str = ""
    options: list[str] = field(default_factory=list)
    options_by_name: dict[str, Any] = field(default_factory=dict)
    workspace: str | dict[str, str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    parent_run_id: str | None = None
    dryrun: bool = False
    wait: bool = False
    log: bool = False
    detach: bool = False
    #: The script in place of a component.
    script: str = ""


@with_flags(
    for_job=True,
    shown=[option.name for option in JOB_OPTIONS.values() if option.common],
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS]",
)
@click.argument("words", nargs=-1, metavar="COMPONENT|SCRIPT [ARGS]...", shell_complete=complete_components)
@click.option(
    "-s", "--scheduler", help="Where to run it.  [default: local]", shell_complete=complete_schedulers, metavar="NAME"
)
@click.option(
    "-cfg",
    "--scheduler-args",
    "--scheduler_args",
    "options",
    multiple=True,
    metavar="K=V,...",
    help="Run options of the scheduler; `holdfast runopts` shows which there are.",
)
@click.option(
    "-j",
    "shape",
    metavar="[[MIN:]NODESx]WORKERS",
    help=f"For a script: how many nodes and workers on each, as --nnodes and --nproc-per-node say.  [default: {SHAPE}]",
)
@click.option(
    "--name", metavar="NAME", help="For a script: name of the job, or experiment/name.  [default: the script's]"
)
@click.option("--dryrun", is_flag=True, help="Show what would be submitted, and submit nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end; a local job is waited for anyway.")
@click.option("--log", is_flag=True, help="Show the output of all replicas until the end.")
@click.option("--detach", is_flag=True, help="Do not follow a local job: print its handle and return.")
@click.option(
    "--workspace",
    multiple=True,
    metavar="FOLDER",
    help="Ship this folder with the job; FOLDER=BELOW puts it below the job's root; may be repeated.",
)
@click.option("--env", "env", multiple=True, metavar="K=V", help="Set a variable in every replica; may be repeated.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read what to run from one JSON object on stdin.")
@click.option("--parent-run-id", "--parent_run_id", help="The run that this one belongs to.")
@click.option("--tee-logs", "--tee_logs", is_flag=True, hidden=True, help="Logs are always kept.")
@click.pass_context
def command(
    context: click.Context,
    /,
    words: tuple[str, ...],
    scheduler: str | None,
    options: tuple[str, ...],
    workspace: tuple[str, ...],
    env: tuple[str, ...],
    from_stdin: bool,
    **_: Any,
) -> None:
    """Submit a job and print its handle.

    COMPONENT makes an app from its arguments: a name (`holdfast builtins`), or file.py:function. A SCRIPT is run
    by dist.ddp, on one worker unless -j says otherwise, and takes the flags of `holdfast launch`: those below and all
    others. A local job is followed to its end, with its output, and the exit code is the job's.
    The handle goes to stdout, all else to stderr.

    \b
      holdfast run utils.echo --msg hello
      holdfast run dist.ddp --help
      holdfast run -j 2x4 --max-restarts 2 --hang auto train.py --lr 0.1
      holdfast run -s local -cfg log_dir=/tmp/logs dist.ddp -j 1x2 --script train.py
      holdfast run my_components.py:trainer --name test
    """
    prepare()
    config = configs.load()
    preset(context, config.section("cli", "run"), "cli.run", also=DEFAULTS)
    if from_stdin:
        if words:
            raise UsageError("with --stdin the component comes from stdin too: leave it out on the command line")
        order = _read_order(sys.stdin.read())
    else:
        order = _order(words, context, config, _env(env))
        order.options = list(options)
        order.workspace = _workspace(workspace)
    order.scheduler = scheduler or order.scheduler
    for name in ("dryrun", "wait", "log", "detach", "parent_run_id"):
        if context.params[name]:
            setattr(order, name, context.params[name])
    sys.exit(_carry_out(_with_defaults(order, config), config))


def _carry_out(order: Order, config: configs.Config) -> int:
    from holdfast.components.errors import HelpRequested

    config.register_resources()
    with get_runner(component_defaults={order.component: config.component(order.component)}) as runner:
        try:
            app = runner.make_app(order.component, order.arguments)
        except HelpRequested:
            _show_help(order.component)
            return 0
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 - a component is user code and may raise anything
            return _tell_broken(order.component, error)
        for role in app.roles:
            role.env |= order.env
            _tell_of_flags_in(role, order.env)
        cfg = _run_options(runner, order, config)
        info = runner.dryrun(app, order.scheduler, cfg, order.workspace, order.parent_run_id)
        if order.dryrun:
            _show_request(app, info)
            return 0
        return _submit(runner, info, app, order)


def _tell_of_flags_in(role: Role, env: Mapping[str, str]) -> None:
    """Warn if a component gives the launch a flag that wins over a variable of `--env`."""
    words = " ".join(role.args).split()
    for option in OPTIONS.values():
        if option.variable in env and option.flag in words:
            sentence = f"--env {option.variable} has no effect: the component gives {option.flag}, which wins"
            facts.warn("variable_unused", sentence, variable=option.variable)


def _tell_broken(component: str, error: Exception) -> int:
    """Show where a component failed, without our own frames."""
    import traceback

    from holdfast.components import arguments

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code is not arguments.materialize_appdef.__code__:
        frames = frames.tb_next
    if frames is None:
        raise error  # it was not the component
    traceback.print_exception(type(error), error, frames.tb_next)
    click.echo(f"holdfast: the component '{component}' raised {type(error).__name__}: {error}", err=True)
    return 1


def _submit(runner: Runner, info: AppDryRunInfo[Any], app: AppDef, order: Order) -> int:
    from holdfast.cli.follow_job import Interrupts, follow_job, say

    is_local = _is_local(order)
    stays = (is_local and not order.detach) or order.wait or order.log
    with Interrupts() as interrupts:
        handle = runner.schedule(info)
        click.echo(handle)
        sys.stdout.flush()
        if stays:
            return follow_job(runner, handle, app, interrupts, with_logs=is_local or order.log)
    say(f"follow it with: holdfast log -f {handle}")
    return 0


# -- what to run -----------------------------------------------------------------------------------------------------


def _order(words: tuple[str, ...], context: click.Context, config: configs.Config, env: dict[str, str]) -> Order:
    """Return the component and its arguments; a script means the component that runs scripts."""
    default = config.values("cli", "run").get("component")
    if default and (not words or words[0].startswith("-")):
        words = (str(default), *words)
    if not words or not words[0]:
        raise UsageError("say what to run: `holdfast builtins` lists components, and a script will do too")
    flags = given(context)
    if words[0].endswith(".py") or flags.get("module") or flags.get("no_python"):
        return _script_order(words, context, config, flags, env)
    typed = [*(["-j"] if context.params["shape"] else []), *(["--name"] if context.params["name"] else [])]
    typed += [OPTIONS[name].flag for name in flags if _is_typed(context, name)]
    if typed:
        raise UsageError(f"{typed[0]} before '{words[0]}' is for scripts only: write it after the component's name")
    return Order(words[0], list(words[1:]), env=env)


def _script_order(
    words: tuple[str, ...], context: click.Context, config: configs.Config, flags: dict[str, Any], env: dict[str, str]
) -> Order:
    """Return the arguments of the component that runs scripts, from the flags before a script."""
    for name in flags:
        if why := OPTIONS[name].not_in_jobs:
            raise UsageError(f"`holdfast run` does not take {OPTIONS[name].flag}, because {why}: leave it out")
    shape = context.params["shape"]
    for name in ("nnodes", "nproc_per_node"):
        if shape and name in flags:
            if _is_typed(context, name):
                raise UsageError(f"-j {shape} and {OPTIONS[name].flag} say the same: leave one of them out")
            del flags[name]
    component = _script_component()
    is_module = flags.pop("module", False)
    rest = words[2:] if words[1:2] == ("--",) else words[1:]
    arguments: dict[str, Any] = {"m" if is_module else "script": words[0], "script_args": list(rest)}
    arguments |= {name: ",".join(value) if isinstance(value, tuple) else value for name, value in flags.items()}
    settings = config.component(component)
    if shape or "j" not in settings:
        arguments["j"] = shape or SHAPE
    if context.params["name"]:
        arguments["name"] = context.params["name"]
    if env:
        arguments["env"] = {**(settings.get("env") or {}), **env}
    _tell_of_doubles(flags, env)
    return Order(component, arguments, script="" if is_module or flags.get("no_python") else words[0])


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _tell_of_doubles(flags: Iterable[str], env: Mapping[str, str]) -> None:
    """Return which value wins if a flag and a variable of the job set the same."""
    for name in flags:
        option = OPTIONS[name]
        if option.variable in env:
            sentence = f"{option.flag} wins over {option.variable}={env[option.variable]} of --env"
            facts.warn("variable_unused", sentence, variable=option.variable)


def _script_component() -> str:
    from holdfast.components.finder import get_component
    from holdfast.errors import ComponentNotFoundError

    try:
        get_component(SCRIPT_COMPONENT)
    except ComponentNotFoundError:  # hidden by components that are registered
        return f"{SCRIPT_HOME}.{SCRIPT_COMPONENT.rpartition('.')[2]}"
    return SCRIPT_COMPONENT


def _read_order(text: str) -> Order:
    """Read what TorchX takes on stdin: one JSON object."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"stdin is not JSON: {error}") from None
    if not isinstance(data, dict) or not data.get("component_name"):
        raise UsageError('stdin must hold one JSON object with a "component_name"')
    arguments = data.get("component_args") or data.get("component_args_str") or []
    options = data.get("scheduler_args") or data.get("scheduler_cfg") or {}
    order = Order(str(data["component_name"]))
    order.arguments = arguments if isinstance(arguments, dict) else [str(each) for each in arguments]
    order.scheduler = str(data.get("scheduler") or "")
    order.options = [options] if isinstance(options, str) else []
    order.options_by_name = options if isinstance(options, dict) else {}
    order.env = {str(key): str(value) for key, value in (data.get("env") or {}).items()}
    for name in ("workspace", "parent_run_id", "dryrun", "wait", "log", "detach"):
        if data.get(name):
            setattr(order, name, data[name])
    return order


def _with_defaults(order: Order, config: configs.Config) -> Order:
    from holdfast.schedulers import get_default_scheduler_name

    settings = config.values("cli", "run")
    order.scheduler = order.scheduler or str(settings.get("scheduler") or get_default_scheduler_name())
    order.workspace = order.workspace or settings.get("workspace")
    # Elsewhere, and in a workspace, it may well be there.
    if order.script and _is_local(order) and not order.workspace and not Path(order.script).is_file():
        raise UsageError(f"there is no script '{order.script}' here; check the path")
    return order


def _is_local(order: Order) -> bool:
    return order.scheduler.startswith("local")


def _run_options(runner: Runner, order: Order, config: configs.Config) -> Mapping[str, CfgVal]:
    known = runner.scheduler_run_opts(order.scheduler)
    cfg = known.cfg_from_json_repr(json.dumps(order.options_by_name)) if order.options_by_name else {}
    for literal in order.options:
        cfg |= known.cfg_from_str(literal)
    config.apply(order.scheduler, cfg, known)
    return cfg


def _env(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--env takes NAME=VALUE, and '{pair}' is not of that form")
        found[name] = value
    return found


def _workspace(given: tuple[str, ...]) -> str | dict[str, str] | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return {source: below for source, _, below in (each.partition("=") for each in given)}


# -- what is shown -----------------------------------------------------------------------------------------------------


def _show_help(component: str) -> None:
    import shutil

    from holdfast.components.arguments import help_text
    from holdfast.components.finder import get_component

    width = min(shutil.get_terminal_size().columns, HELP_WIDTH_MAX)
    click.echo(help_text(get_component(component).fn, component, width))


def _show_request(app: AppDef, info: AppDryRunInfo[Any]) -> None:
    from holdfast.cli.describe import app_as_data
    from holdfast.cli.tables import outline

    click.echo("=== APPLICATION ===")
    click.echo("\n".join(outline(app_as_data(info.app or app))))
    click.echo("=== SCHEDULER REQUEST ===")
    click.echo(str(info).rstrip())
