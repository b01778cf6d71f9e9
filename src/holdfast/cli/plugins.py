"""`holdfast plugins`: what installed packages add, and what of it is broken."""

from __future__ import annotations

import sys

import click

from holdfast import plugins
from holdfast.cli.jobs import prepare
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError

#: Every group of entry points that we read, and what it holds.
GROUPS = (
    "holdfast.schedulers",
    "torchx.schedulers",
    "holdfast.components",
    "torchx.components",
    "holdfast.named_resources",
    "torchx.named_resources",
    "holdfast.rendezvous",
    "torchrun.handlers",
    "torchrun.logs_specs",
    "holdfast.metrics",
    "holdfast.events",
    "holdfast.tracker",
    "torchx.tracker",
    "holdfast.cli.cmds",
    "torchx.cli.cmds",
)
#: Torch registers what torchrun uses by default; we have our own, and importing torch takes seconds.
NEVER_LOADED = "torch"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("--group", metavar="GROUP", help="Only this group, as in holdfast.schedulers.")
def command(as_json: bool, group: str | None) -> None:
    """Load every plugin and say whether it works; exits with 1 if one is broken.

    \b
      holdfast plugins
      holdfast plugins --group holdfast.schedulers
    """
    prepare()
    found = [plugin for each in ([group] if group else GROUPS) for plugin in plugins.find(each)]
    if group and not found:
        known = "" if group in GROUPS else f"; groups that Holdfast knows: {', '.join(GROUPS)}"
        raise UsageError(f"no installed package adds anything to the group '{group}'{known}")
    rows = [_row(plugin) for plugin in found if plugin.package != NEVER_LOADED]
    more = [] if group else _more_problems()
    if as_json:
        keys = ("group", "name", "package", "value", "error")
        show_json([{**dict(zip(keys, row, strict=True)), "ok": not row[-1]} for row in rows])
    else:
        show(
            ("GROUP", "NAME", "PACKAGE", "WORKS", "POINTS TO"),
            [(kind, name, package, error or "ok", value) for kind, name, package, value, error in rows],
            keep_end=(0, 4),
        )
        for problem in more:
            click.echo(problem)
    sys.exit(1 if more or any(row[-1] for row in rows) else 0)


def _row(plugin: plugins.Plugin) -> tuple[str, str, str, str, str]:
    try:
        plugin.load()
        error = ""
    except plugins.PluginBrokenError as broken:
        error = f"{type(broken.__cause__).__name__}: {broken.__cause__}"
    return plugin.group, plugin.name, plugin.package, plugin.value, error


def _more_problems() -> list[str]:
    """Return what is wrong below an entry point that can be loaded: modules, components, names that are taken."""
    from holdfast.cli.plugin_commands import hidden_commands
    from holdfast.components.finder import problems
    from holdfast.schedulers import conflicts

    return [*map(str, problems()), *conflicts(), *hidden_commands()]
