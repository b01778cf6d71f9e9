"""`holdfast configure`: write a settings file, or show what is in force."""

from __future__ import annotations

import json
from pathlib import Path

import click

from holdfast.cli.jobs import complete_schedulers, open_runner
from holdfast.cli.runopts import every_run_opts
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError
from holdfast.runner import config as configs
from holdfast.runner.toml_text import template
from holdfast.specs import runopts

DEFAULT = "default"


@click.command()
@click.option(
    "-s",
    "--schedulers",
    default="",
    metavar="NAME,...",
    shell_complete=complete_schedulers,
    help="Only these.  [default: all]",
)
@click.option("--print", "as_print", is_flag=True, help="Show every value in force and where it comes from.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("-a", "--all", "everything", is_flag=True, hidden=True, help="All options are written anyway.")
def command(schedulers: str, as_print: bool, as_json: bool, force: bool, everything: bool) -> None:
    """Write .holdfast.toml with every run option of the schedulers, explained and ready to be set.

    \b
      holdfast configure -s local
      holdfast configure --print
    """
    del everything
    with open_runner() as runner:
        options = every_run_opts(runner, [name for name in schedulers.split(",") if name])
    if as_print or as_json:
        _show(options, as_json)
        return
    path = Path(configs.OURS)
    if path.exists() and not force:
        raise UsageError(f"{path} is there already: give --force to write over it, or --print to see what is in force")
    path.write_text(template(options))
    click.echo(f"{path.resolve()} written")


def _show(options: dict[str, runopts], as_json: bool) -> None:
    config = configs.load()
    rows = []
    for scheduler, known in options.items():
        settings = config.section("scheduler", scheduler)
        for name, option in known:
            setting = settings.pop(name, configs.Setting(option.default, DEFAULT))
            origin = "required, not set" if option.is_required and setting.origin == DEFAULT else setting.origin
            rows.append((f"scheduler.{scheduler}.{name}", setting.value, origin))
        rows += [(f"scheduler.{scheduler}.{name}", each.value, each.origin) for name, each in settings.items()]
    told = {name for name, *_ in rows}
    rows += [(name, each.value, each.origin) for name, each in config.settings() if name not in told]
    if as_json:
        show_json([{"name": name, "value": value, "from": origin} for name, value, origin in rows])
    else:
        show(("SETTING", "VALUE", "FROM"), [(name, _said(value), origin) for name, value, origin in rows])


def _said(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
