"""Flags of a launch that a settings file presets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]
SHOW = "import os; print(os.environ['WORLD_SIZE'], os.environ['TORCHELASTIC_MAX_RESTARTS'])"


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / ".holdfast.toml"
        path.write_text(text)
        return path

    return write


def test_typed_flags_win_over_variables_and_these_over_settings(
    launch: StartLaunch, settings: Callable[[str], Path]
) -> None:
    settings('[cli.launch]\nnproc-per-node = 2\nmax_restarts = 5\nstandalone = true\nmetrics = "null"\n')

    assert launch(script=SHOW).end()[1].splitlines() == ["2 5", "2 5"]
    assert launch(script=SHOW, PET_MAX_RESTARTS="6").end()[1].splitlines() == ["2 6", "2 6"]
    assert launch("--max-rest", "0", "--nproc", "1", script=SHOW, PET_MAX_RESTARTS="6").end()[1] == "1 0\n"


def test_a_replica_of_a_job_was_told_everything_when_it_was_submitted(
    launch: StartLaunch, settings: Callable[[str], Path]
) -> None:
    settings("[cli.launch]\nnproc_per_node = 2\n")

    assert launch(script=SHOW, HOLDFAST_JOB_ID="local://holdfast/x").end()[1] == "1 0\n"


def test_a_setting_that_there_is_not_is_told(launch: StartLaunch, settings: Callable[[str], Path]) -> None:
    path = settings("[cli.launch]\nmax_restart = 5\n[cli.lanch]\ntee = 3\n")
    _, _, err = launch(script=SHOW).end()

    assert f"holdfast: {path}: [cli.launch] has no 'max_restart'; did you mean 'max_restarts'?\n" in err
    assert f"holdfast: {path}: [cli.lanch] is left out; there are [cli.launch] and [cli.run]\n" in err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_restarts = 'many'", "'max_restarts' is 'many' but must be a whole number of at least 0"),
        ("max_restarts = -1", "'max_restarts' is -1 but must be a whole number of at least 0"),
        ("vault = 'perhaps'", "'vault' is 'perhaps' but must be true or false"),
        ("start_method = 'x'", "'start_method' is 'x' but must be one of spawn, fork, forkserver"),
        ("tee = [1]", "'tee' is [1] but must be text"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_file_and_name(
    launch: StartLaunch, settings: Callable[[str], Path], text: str, sentence: str
) -> None:
    path = settings(f"[cli.launch]\n{text}\n")
    code, _, err = launch(script=SHOW).end()

    assert code == 2
    assert err == f"holdfast: {path}: {sentence}\n"
