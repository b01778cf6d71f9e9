"""`holdfast man`: manual pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli.manual import every_command, file_name, page
from holdfast.errors import UsageError


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option(
    "--write", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write every page to this folder."
)
def command(words: tuple[str, ...], folder: Path | None) -> None:
    """Show the manual page of a command; without one, that of `holdfast` itself.

    If the output is not a terminal, or man(1) is not installed, the page is printed as man reads it.

    \b
      holdfast man launch
      holdfast man secret new
      holdfast man --write ~/.local/share/man/man1     then: man holdfast-launch
    """
    from holdfast.cli import cli

    pages = {name: page(name, found, context, __version__) for name, found, context in every_command(cli, "holdfast")}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / file_name(name)).write_text(text)
        click.echo(f"wrote {len(pages)} pages to {folder}")
        return
    name = " ".join(["holdfast", *words])
    if name not in pages:
        raise UsageError(f"there is no command '{name}'; `holdfast --help` lists the commands")
    if sys.stdout.isatty() and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=pages[name], text=True, check=False)
    else:
        click.echo(pages[name], nl=False)
