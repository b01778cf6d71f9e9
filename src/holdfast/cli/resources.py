"""`holdfast resources`: machines by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import click

from holdfast.cli.jobs import prepare
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError
from holdfast.runner import config as configs
from holdfast.specs import Resource


@click.command()
@click.argument("pattern", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(pattern: str, as_json: bool) -> None:
    """Show the named resources, for `-h` of components; PATTERN as in 'aws_p5*'.

    \b
      holdfast resources
      holdfast resources 'aws_p5*'
    """
    prepare()
    configs.load().register_resources()
    from holdfast.specs import named_resources

    found = {name: named_resources[name] for name in named_resources if fnmatch.fnmatch(name, pattern)}
    if not found:
        raise UsageError(f"no named resource is called '{pattern}'; write a part of it between stars, as in '*p5*'")
    if as_json:
        show_json({name: resource.to_json() for name, resource in found.items()})
        return
    show(
        ("NAME", "CPU", "GPU", "MEM MB", "DEVICES", "CAPABILITIES"),
        [
            (name, each.cpu, each.gpu, each.memMB, _pairs(each.devices), _pairs(each.capabilities))
            for name, each in found.items()
            if isinstance(each, Resource)
        ],
    )


def _pairs(data: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in data.items())
