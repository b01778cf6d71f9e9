"""`holdfast tracker`: what runs have told."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.tracker.backend.fsspec import create
from tests.cli.conftest import Invoke

pytest.importorskip("fsspec")

RUN = "local://me/app-1"
FSSPEC = "holdfast.tracker.backend.fsspec:create"

PROGRAM = """\
from holdfast.tracker import app_run_from_env
run = app_run_from_env()
run.add_metadata(lr=0.1)
run.add_artifact("model", "/models/1")
print(run.job_id())
"""


@pytest.fixture
def config(tmp_path: Path, environ: dict[str, str]) -> str:
    """A tracker's file, which the settings name."""
    (tmp_path / "runs").mkdir()
    config = tmp_path / "tracker.conf"
    config.write_text(f"protocol=file\nroot_path={tmp_path / 'runs'}\n")
    # The name has a colon, which an INI file takes for the end of a key.
    Path(".holdfast.toml").write_text(f'[torchx.tracker]\n"{FSSPEC}" = "{config}"\n')
    return str(config)


def test_what_a_run_has_told_is_shown(invoke: Invoke, config: str) -> None:
    tracker = create(config)
    tracker.add_metadata(RUN, lr=0.1)
    tracker.add_artifact(RUN, "model", "/models/1", {"step": 3})
    tracker.add_source("local://me/b", RUN, "model")

    assert invoke("tracker", "list", "jobs").out.split() == ["JOB", "ID", RUN, "local://me/b"]
    assert invoke("tracker", "list", "jobs", "--parent-run-id", RUN).out.split() == ["JOB", "ID", "local://me/b"]
    assert invoke("tracker", "list", "metadata", RUN, "--json").data == [{"id": "lr", "value": 0.1}]
    assert invoke("tracker", "list", "artifacts", RUN).out.split() == [
        *("ARTIFACT", "PATH", "METADATA"),
        *("model", "/models/1", "{'step':", "3}"),
    ]
    assert invoke("tracker", "list", "artifacts", RUN, "--artifact", "other", "--json").data == []
    assert invoke("tracker", "list", "lineage", RUN, "--json").data == [
        {"is_a": "descendant", "run": "local://me/b", "artifact": None}
    ]
    assert invoke("tracker", "list", "lineage", "local://me/b", "--sources-only", "--json").data == [
        {"is_a": "source", "run": RUN, "artifact": "model"}
    ]


@pytest.mark.parametrize("name", ["app-1", "app", "local://me/app-1", "local://other/app-1"])
def test_a_run_is_named_by_its_handle_its_id_or_the_beginning_of_that(invoke: Invoke, config: str, name: str) -> None:
    create(config).add_metadata(RUN, lr=0.1)
    create(config).add_metadata("local://me/b", lr=0.2)

    assert invoke("tracker", "list", "metadata", name, "--json").data == [{"id": "lr", "value": 0.1}]


def test_without_a_tracker_it_says_what_to_do(invoke: Invoke) -> None:
    said = invoke("tracker", "list", "jobs")

    assert said.code == 2
    assert "there is no tracker: name one in [torchx:tracker] of .torchxconfig, or in TORCHX_TRACKERS" in said.err


def test_a_job_writes_to_the_trackers_of_its_submitter(
    invoke: Invoke, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("program.py").write_text(PROGRAM)
    monkeypatch.delenv("TORCHX_TRACKERS", raising=False)

    said = invoke("run", "--parent-run-id", "sweep", "utils.python", "--script", "program.py")

    assert said.code == 0, said.err
    handle = said.out.strip()
    assert dict(create(config).metadata(handle)) == {"lr": 0.1}
    assert [each.source_run_id for each in create(config).sources(handle)] == ["sweep"]
