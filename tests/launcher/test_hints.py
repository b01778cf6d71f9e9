"""What is said about flags behind the script, and about arguments that a script does not take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.launcher.hints import misplaced_flags
from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]

TAKES_LR = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    print("lr", parser.parse_args().lr)
"""


@pytest.mark.parametrize("preload", ["none", "json"])
def test_what_argparse_complained_of_is_the_failure(launch: StartLaunch, preload: str) -> None:
    code, _, err = launch("--preload", preload, script=TAKES_LR, args=("--bogus",)).end()

    assert code == 2
    assert " s: unrecognized arguments: --bogus (exit code 2)\n" in err
    assert "argparse.py" not in err
    assert "Traceback" not in err
    assert "flags of the launch" not in err


def test_a_value_that_argparse_does_not_like_is_told_without_its_insides(launch: StartLaunch) -> None:
    _, _, err = launch(script=TAKES_LR, args=("--lr", "x")).end()

    assert " s: argument --lr: invalid float value: 'x' (exit code 2)\n" in err
    assert "argparse.py" not in err


def test_an_exit_while_an_error_is_handled_names_the_error(launch: StartLaunch) -> None:
    script = """
        import sys
        try:
            raise ValueError("no data")
        except ValueError:
            sys.exit(3)
    """
    code, _, err = launch(script=script).end()

    assert code == 3
    assert " s: ValueError: no data (exit code 3)\n" in err


@pytest.mark.parametrize("script", ["print('ran')", TAKES_LR])
def test_a_flag_of_the_launch_that_the_script_gets_is_pointed_out(launch: StartLaunch, script: str) -> None:
    _, _, err = launch(script=script, args=("--nproc_per_node=2",)).end()

    assert err.count("gets --nproc-per-node, which is also a flag of `holdfast launch`") == 1
    assert "flags of the launch stand before" in err


def test_a_flag_that_a_script_may_well_have_is_pointed_out_only_where_it_is_refused(launch: StartLaunch) -> None:
    _, _, refused = launch(script=TAKES_LR, args=("--tee", "3")).end()
    _, _, taken = launch(script="print('ran')", args=("--tee", "3")).end()

    assert "gets --tee, which is also a flag of `holdfast launch`" in refused
    assert "--tee" not in taken


def test_a_script_that_has_the_flag_itself_is_left_alone(launch: StartLaunch) -> None:
    script = "import sys\nassert sys.argv[1] == '--nnodes'"
    code, _, err = launch(script=script, args=("--nnodes", "3")).end()

    assert code == 0
    assert "nnodes" not in err


def test_misplaced_flags_are_found_in_any_spelling() -> None:
    assert misplaced_flags(["--nproc_per_node=2", "--lr", "--rdzv-id", "--help", "x", "-m"]) == [
        "--nproc-per-node",
        "--rdzv-id",
    ]
