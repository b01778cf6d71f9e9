"""The flags of a launch as options of a command: read as torchrun reads them, shown by group, preset by files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.launcher.options import FLAGS, OPTIONS, Group, Option
from holdfast.launcher.words import Flag, arrange

if TYPE_CHECKING:
    from holdfast.runner.config import Setting


#: The heading of the flags that people use first.
COMMON = "Most used"


class LaunchFlag(click.Option):
    """One flag of the table."""

    def __init__(self, option: Option, *, hidden: bool = False, reads_variable: bool = True) -> None:
        self.option = option
        super().__init__(
            [option.name, option.flag, *([option.short] if option.short else [])],
            type=None if option.is_flag else _click_type(option),
            is_flag=option.is_flag,
            multiple=option.repeats,
            default=option.default,
            envvar=(option.variable or None) if reads_variable else None,
            help=help_line(option),
            hidden=hidden,
            metavar=None if option.is_flag or option.values else _metavar(option),
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flag and what help says of it, without its limits."""
        record = super().get_help_record(ctx)
        return (record[0], self.help or "") if record is not None else None


class LaunchCommand(click.Command):
    """A command with the flags of a launch among its options, and a script behind them."""

    def __init__(self, *args: Any, shown: Collection[str] | None = None, for_job: bool = False, **more: Any) -> None:
        """Hide the flags that are not among `shown`.

        With `for_job` the launch happens elsewhere: variables of this process do not apply, and in place of the script
        there may be a component, to which a `--` means something.
        """
        super().__init__(*args, **more)
        self._for_job = for_job
        self.params += [
            LaunchFlag(each, hidden=shown is not None and each.name not in shown, reads_variable=not for_job)
            for each in OPTIONS.values()
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as torchrun does."""
        if not ctx.resilient_parsing:  # a shell completes what is not finished yet
            args = arrange(args, self._flags(ctx), keep_dashes=self._for_job)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the flags of a launch that are used most, the command's own options, then the others by subject."""
        titles = (COMMON, "Options", *(each.value for each in Group))
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups[_title(param)].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def _flags(self, ctx: click.Context) -> dict[str, Flag]:
        """Return the flags of a launch and the command's own, which a prefix may mean just as well."""
        own = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        return FLAGS | {
            spelling.replace("_", "-"): Flag(max(each.opts, key=len), takes_value=not each.is_flag)
            for each in own
            if not isinstance(each, LaunchFlag)
            for spelling in each.opts
        }


def preset(ctx: click.Context, settings: Mapping[str, Setting], section: str, also: Collection[str] = ()) -> None:
    """Take defaults for flags from a section of the settings files; flags and variables win over them.

    `also` are further names that the section may have. Unknown names give a warning, wrong values an error.
    """
    flags = {param.name: param for param in ctx.command.params if isinstance(param, LaunchFlag)}
    for key, setting in settings.items():
        name = key.replace("-", "_")
        if name not in flags:
            if name not in also:
                warn_of_unknown(key, setting, section, [*also, *flags])
        elif ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
            ctx.params[name] = _converted(ctx, flags[name], setting)
            ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def given(ctx: click.Context) -> dict[str, Any]:
    """Return the flags of a launch that were given, by any way but their defaults."""
    names = [str(param.name) for param in ctx.command.params if isinstance(param, LaunchFlag)]
    return {name: ctx.params[name] for name in names if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}


def warn_of_unknown(name: str, setting: Setting, section: str, known: Collection[str]) -> None:
    """Warn of a setting that a section does not have."""
    from difflib import get_close_matches  # only a mistake needs it

    close = get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "docs/OPTIONS.md lists them"
    facts.warn("config_unknown", f"{setting.origin}: [{section}] has no '{name}'; {hint}", setting=name)


def help_line(option: Option) -> str:
    """Return the help of a flag with its default."""
    return f"{option.help}  [default: {option.shown_default}]" if option.shown_default else option.help


def with_flags(**settings: Any) -> Callable[[Callable[..., Any]], LaunchCommand]:
    """Make a function a command with flags of a launch."""
    make: Callable[[Callable[..., Any]], LaunchCommand] = click.command(cls=LaunchCommand, **settings)
    return make


def _converted(ctx: click.Context, flag: LaunchFlag, setting: Setting) -> Any:
    value = [setting.value] if flag.multiple and isinstance(setting.value, str) else setting.value
    try:
        if isinstance(value, dict) or (isinstance(value, list) and not flag.multiple):
            raise click.BadParameter("one value is expected")
        return flag.type_cast_value(ctx, value)
    except click.BadParameter:
        wanted = _wanted(flag.option)
        raise UsageError(f"{setting.origin}: '{flag.name}' is {setting.value!r} but must be {wanted}") from None


def _wanted(option: Option) -> str:
    if option.values:
        return f"one of {', '.join(option.values)}"
    least = "" if option.least is None else f" of at least {option.least:g}"
    return {int: f"a whole number{least}", float: f"a number{least}", bool: "true or false"}.get(option.type, "text")


def _title(param: click.Option) -> str:
    if not isinstance(param, LaunchFlag):
        return "Options"
    return COMMON if param.option.common else param.option.group.value


def _click_type(option: Option) -> click.ParamType[Any]:
    if option.values:
        return click.Choice(option.values)
    if option.type is int:
        return click.INT if option.least is None else click.IntRange(int(option.least))
    if option.type is float:
        return click.FLOAT if option.least is None else click.FloatRange(option.least)
    return click.STRING


def _metavar(option: Option) -> str:
    return {int: "N", float: "SECONDS"}.get(option.type, "TEXT")
