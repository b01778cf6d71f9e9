"""`holdfast completion`: what a shell needs to complete our words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that makes SHELL complete commands, components, schedulers and jobs.

    \b
      bash:  eval "$(holdfast completion bash)"      in ~/.bashrc
      zsh:   eval "$(holdfast completion zsh)"       in ~/.zshrc
      fish:  holdfast completion fish | source       in ~/.config/fish/config.fish
    """
    from holdfast.cli import cli

    script = get_completion_class(shell)
    assert script is not None  # click knows all of them
    click.echo(script(cli, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
