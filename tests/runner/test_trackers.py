"""Which trackers a run tells is the business of who submits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runner import Runner
from holdfast.runner.trackers import get_configured_trackers, tracker_variables
from tests.runner.conftest import app

CONFIG = """\
[torchx:tracker]
fsspec =
other = /etc/other
third =

[tracker:fsspec]
config = /etc/fsspec
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / ".torchxconfig").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return {"HOME": str(tmp_path / "home")}


def test_the_settings_name_them(environ: dict[str, str]) -> None:
    assert get_configured_trackers(environ) == {
        "fsspec": "/etc/fsspec",
        "other": "/etc/other",
        "third": None,
    }


def test_the_environment_has_the_last_word(environ: dict[str, str]) -> None:
    environ |= {"TORCHX_TRACKERS": "fsspec,mine", "TORCHX_TRACKER_MINE_CONFIG": "here"}

    assert get_configured_trackers(environ) == {"fsspec": "/etc/fsspec", "mine": "here"}
    assert get_configured_trackers({**environ, "TORCHX_TRACKERS": ""}) == {}


def test_the_run_is_told_by_variables(environ: dict[str, str], runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", environ["HOME"])
    monkeypatch.delenv("TORCHX_TRACKERS", raising=False)
    told = {
        "TORCHX_TRACKERS": "fsspec,other",
        "TORCHX_TRACKER_FSSPEC_CONFIG": "/etc/fsspec",
        "TORCHX_TRACKER_OTHER_CONFIG": "mine",
    }
    Path(".torchxconfig").write_text(CONFIG.replace("third =\n", ""))

    made = runner.dryrun(app(env={"TORCHX_TRACKER_OTHER_CONFIG": "mine"}), "memory").app

    assert made is not None
    assert {name: value for name, value in made.roles[0].env.items() if "TRACKER" in name} == told


def test_without_trackers_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert tracker_variables({"HOME": str(tmp_path)}) == {}
