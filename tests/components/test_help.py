"""What --help says of a component."""

from __future__ import annotations

import enum
import textwrap
from pathlib import Path
from typing import Annotated

from holdfast.components.arguments import help_text
from holdfast.specs import AppDef


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def trainer(
    *script_args: str,
    script: str,
    steps: int = 10,
    debug: bool = False,
    tags: list[str] | None = None,
    color: Color = Color.RED,
    out: Path = Path("/tmp/out"),
    plan: dict[str, list[int]] | None = None,
    workers: Annotated[int, "-w"] = 4,
    odd: int = "three",  # type: ignore[assignment]
) -> AppDef:
    """Train a model.

    It takes a while.

    Args:
        script_args: Arguments of the script.
        script: The script to run,
            wherever it is.
        steps: How many steps.
    """
    return AppDef("trainer")


def test_help_shows_the_docstring_and_every_parameter_with_type_and_default() -> None:
    said = help_text(trainer, "foo.trainer", width=100)

    assert said == textwrap.dedent(
        """\
        Usage: holdfast run foo.trainer --script SCRIPT [flags] [--] [script_args ...]

        Train a model.

        It takes a while.

        Flags:
          --script                  The script to run, wherever it is. [str; required]
          --steps                   How many steps. [int; default: 10]
          --debug, --no-debug       [bool; default: false]
          --tags                    [list[str]; default: none]
          --color                   [one of RED, BLUE; default: RED]
          --out                     [path; default: /tmp/out]
          --plan                    [dict[str, list[int]]; default: none]
          -w, --workers             [int; default: 4]
          --odd                     [int; default: 'three']

        Arguments:
          script_args               str, any number: from the first word without a flag, or after --.
                                    Arguments of the script.

        Lists are written a,b and dictionaries k=v,k2=v2, with quotes around what holds a comma; given
        again, they add up. What is nested is separated by semicolons, or written as JSON."""
    )


def test_a_function_without_docstring_and_parameters_has_help_too() -> None:
    def bare() -> AppDef:
        return AppDef("bare")

    assert help_text(bare) == "Usage: holdfast run bare"


def test_a_docstring_that_is_not_in_googles_style_is_shown_as_it_is() -> None:
    def free(x: int = 1) -> AppDef:
        """Say: what?

        :param x: a number
        """
        return AppDef("free")

    said = help_text(free)

    assert "Say: what?" in said
    assert "--x" in said


def test_paragraphs_are_filled_and_examples_stay_as_they_are() -> None:
    def long_winded() -> AppDef:
        """Say.

        This paragraph was broken
        by hand.

            $ an example
            $ of two lines
        """
        return AppDef("free")

    said = help_text(long_winded, width=80)

    assert "\nThis paragraph was broken by hand.\n" in said
    assert "    $ an example\n    $ of two lines" in said


def test_help_fits_the_width_it_is_given() -> None:
    lines = help_text(trainer, "foo.trainer", width=70).splitlines()

    assert max(map(len, lines)) <= 70
