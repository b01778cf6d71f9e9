"""Every command explains itself, the same way in --help and in its manual page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from holdfast import __version__
from holdfast.cli import ALIASES, COMMANDS, cli
from holdfast.cli.manual import every_command, page
from tests.cli.conftest import Invoke

EVERY = {name: (command, context) for name, command, context in every_command(cli, "holdfast")}
OURS = [name for name in EVERY if name.split()[1:2] == [] or name.split()[1] in COMMANDS]


@pytest.mark.parametrize("name", OURS)
def test_every_help_shows_an_example(name: str) -> None:
    command, _ = EVERY[name]

    assert command.help
    assert f"  {name}" in command.help or any(f"  holdfast {alias}" in command.help for alias in ALIASES)


@pytest.mark.parametrize("name", [name for name in OURS if name != "holdfast run"])  # a component has its own
def test_an_example_uses_options_that_exist(name: str) -> None:
    command, _ = EVERY[name]
    if isinstance(command, click.Group):
        return  # its examples are of its commands
    known = {spelling for each in command.params if isinstance(each, click.Option) for spelling in each.opts}
    for line in (command.help or "").splitlines():
        if line.strip().startswith(f"{name} "):
            words = [word.partition("=")[0] for word in line.split("  holdfast")[-1].split()]
            script = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
            assert {word for word in words[:script] if word.startswith("--")} <= known | {"--help"}, line


def test_every_page_is_one_that_man_can_read() -> None:
    for name, (command, context) in EVERY.items():
        text = page(name, command, context, __version__)

        assert text.startswith(".TH ")
        assert ".SH NAME" in text
        assert "\b" not in text
        if shutil.which("man"):
            shown = subprocess.run(
                ["man", "--warnings", "-l", "-"], input=text, capture_output=True, text=True, check=True
            )
            assert shown.stderr == ""


def test_pages_are_written_and_shown(invoke: Invoke, tmp_path: Path) -> None:
    assert f"wrote {len(EVERY)} pages" in invoke("man", "--write", str(tmp_path / "man1")).out
    assert "nproc" in (tmp_path / "man1" / "holdfast-launch.1").read_text()
    assert invoke("man", "secret", "new").out == (tmp_path / "man1" / "holdfast-secret-new.1").read_text()
    assert "there is no command 'holdfast nothing'" in invoke("man", "nothing").err


@pytest.mark.parametrize(("alias", "meant"), ALIASES.items())
def test_short_words_mean_the_long_ones(invoke: Invoke, alias: str, meant: str) -> None:
    assert invoke(alias, "--help").out.split("\n")[2:] == invoke(meant, "--help").out.split("\n")[2:]
    assert alias in invoke("--help").out


def test_commands_about_one_job_take_the_latest(invoke: Invoke) -> None:
    assert "there is no job yet" in invoke("status").err
    first = invoke("run", "utils.echo", "--msg", "one").out.strip()
    second = invoke("run", "utils.echo", "--msg", "two").out.strip()

    assert invoke("status").out.startswith(f"{second}\n")
    assert f"{second}, the latest job" in invoke("status").err
    assert invoke("log").out.endswith("two\n")
    assert invoke("log", "--tail", "1").out.endswith("two\n")
    assert invoke("wait").code == 0
    assert second in invoke("describe").out
    assert f"holdfast cancel {second.rpartition('/')[2]}" in invoke("stop").err
    assert f"holdfast delete {second.rpartition('/')[2]}" in invoke("rm").err
    assert invoke("ps").out.index(first) < invoke("ps").out.index(second)
