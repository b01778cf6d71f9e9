"""Commands that installed packages add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import plugins
from tests.cli.conftest import Invoke

MODULE = '''
import argparse

import click
from torchx.cli.cmd_base import SubCommand
from torchx.runner import get_runner


class CmdGreet(SubCommand):
    """Greets the user."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("who")
        subparser.add_argument("-s", "--shout", action="store_true")

    def run(self, args: argparse.Namespace) -> None:
        with get_runner() as runner:
            assert "local" in runner.scheduler_backends()
        print(f"hello {args.who.upper() if args.shout else args.who}")


class CmdStatus(CmdGreet):
    pass


class CmdUnable(CmdGreet):
    def __init__(self) -> None:
        raise RuntimeError("not today")


@click.command()
@click.option("--times", default=1)
def clicked(times: int) -> None:
    """Click."""
    click.echo("click" * times)
'''


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "greeting-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "greeting_commands.py").write_text(MODULE)
    (info / "entry_points.txt").write_text(
        "[torchx.cli.cmds]\n"
        "greet = greeting_commands:CmdGreet\n"
        "status = greeting_commands:CmdStatus\n"
        "unable = greeting_commands:CmdUnable\n"
        "gone = greeting_commands:Gone\n"
        "[holdfast.cli.cmds]\n"
        "click = greeting_commands:clicked\n"
    )
    monkeypatch.syspath_prepend(str(site))
    plugins.forget()


def test_a_command_written_for_torchx_works(invoke: Invoke) -> None:
    assert invoke("greet", "you").out == "hello you\n"
    assert invoke("greet", "--shout", "you").out == "hello YOU\n"
    assert invoke("greet", "you", "-s").out == "hello YOU\n"


def test_its_help_and_its_mistakes_are_those_of_its_own_parser(invoke: Invoke) -> None:
    said = invoke("greet", "--help")
    assert said.code == 0
    assert "usage: holdfast greet [-h] [-s] who" in said.out
    assert "Greets the user." in said.out

    said = invoke("greet")
    assert said.code == 2
    assert "the following arguments are required: who" in said.err


def test_a_command_of_clicks_works(invoke: Invoke) -> None:
    assert invoke("click", "--times", "2").out == "clickclick\n"


def test_help_names_the_package_that_added_it(invoke: Invoke) -> None:
    said = invoke("--help").out

    assert "Added by packages:" in said
    assert "greet   Added by the package greeting." in said
    assert said.count("  status ") == 1


def test_ours_keep_their_names(invoke: Invoke) -> None:
    said = invoke("status", "nothing")

    assert "there is no job 'nothing'" in said.err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone", "the plugin 'gone' of greeting (torchx.cli.cmds: greeting_commands:Gone) cannot be loaded"),
        ("unable", "the command 'unable' of greeting (greeting_commands:CmdUnable) cannot be made: RuntimeError: not"),
    ],
)
def test_a_broken_one_is_named_and_costs_only_itself(invoke: Invoke, name: str, sentence: str) -> None:
    said = invoke(name)

    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert invoke("greet", "you").code == 0


def test_plugins_tells_which_are_broken_or_hidden(invoke: Invoke) -> None:
    said = invoke("plugins", "--json", "--group", "torchx.cli.cmds")
    assert {row["name"]: row["ok"] for row in json.loads(said.out)} == {
        "greet": True,
        "status": True,
        "unable": True,
        "gone": False,
    }

    said = invoke("plugins")
    assert (
        "the command 'status' of greeting (greeting_commands:CmdStatus) is not used: holdfast has that name" in said.out
    )
    assert said.code == 1
