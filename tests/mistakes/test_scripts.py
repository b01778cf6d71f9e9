"""Scripts, components and plugins that are broken themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.conftest import Invoke, Start, answered, finish

ENTRY_POINTS = """
[holdfast.schedulers]
missing = no_such_module:create
raising = unwell_module:create
useless = os:getcwd
[holdfast.metrics]
raising = unwell_module:create
[holdfast.rendezvous]
raising = unwell_module:create
"""


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package whose plugins do not work."""
    info = Path("packages/foreign-1.0.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    Path("packages/unwell_module.py").write_text("raise RuntimeError('I am unwell')\n")
    monkeypatch.setenv("PYTHONPATH", str(Path("packages").absolute()))


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("def f(:\n    pass\n", "SyntaxError: invalid syntax"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('no data')\n", "no data"),
    ],
)
def test_a_script_that_cannot_run_is_named_with_its_cause_and_not_started_again(
    script: str, cause: str, start: Start
) -> None:
    Path("script.py").write_text(script)
    said = finish(start("launch", "script.py"))

    assert said.code == 1
    [verdict] = [line for line in said.err.splitlines() if line.startswith("holdfast: failed after")]
    assert cause in verdict
    assert said.err.splitlines()[-1].startswith("  logs     ")
    assert "src/holdfast" not in said.err, "what is ours is left out of the traceback"


def test_a_module_that_does_not_exist(start: Start) -> None:
    said = finish(start("launch", "-m", "no_such_module"))

    assert said.code == 1
    [verdict] = [line for line in said.err.splitlines() if line.startswith("holdfast: failed after")]
    assert "No module named no_such_module" in verdict


def test_a_script_whose_job_fails_is_named_with_its_cause(invoke: Invoke) -> None:
    Path("script.py").write_text("import no_such_module\n")
    said = invoke("run", "-j", "1x1", "script.py")

    assert said.code == 1
    assert "failed in script/0 (exit code 1): rank 0: ModuleNotFoundError: No module named 'no_such_module'" in said.err


def test_a_component_that_raises_is_shown_without_the_way_there(invoke: Invoke) -> None:
    Path("mine.py").write_text("def app():\n    raise ValueError('no image')\n")
    said = invoke("run", "mine.py:app")

    assert said.code in (1, 2)
    assert "mine.py" in said.err
    assert "src/holdfast" not in said.err


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (
            ["run", "-s", "missing", "utils.echo"],
            "the plugin 'missing' of foreign (holdfast.schedulers: no_such_module:create) cannot be loaded: "
            "ModuleNotFoundError: No module named 'no_such_module'",
            2,
        ),
        (
            ["run", "-s", "raising", "utils.echo"],
            "the plugin 'raising' of foreign (holdfast.schedulers: unwell_module:create) cannot be loaded: "
            "RuntimeError: I am unwell",
            2,
        ),
        (["run", "-s", "useless", "utils.echo"], "the scheduler 'useless' of foreign (os:getcwd) cannot be made", 2),
        (
            ["launch", "--rdzv-backend", "raising", "ok.py"],
            "the plugin 'raising' of foreign (holdfast.rendezvous: unwell_module:create) cannot be loaded",
            2,
        ),
        (
            ["launch", "-q", "--metrics", "raising", "ok.py"],
            "",
            0,
        ),
    ],
)
def test_plugins_that_cannot_be_loaded(words: list[str], sentence: str, code: int, start: Start) -> None:
    said = finish(start(*words))

    if code:
        answered(said, sentence, code)
    else:
        assert (said.code, said.out) == (0, "ok\n"), said.err


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_costs_only_itself(start: Start) -> None:
    assert finish(start("run", "utils.echo")).code == 0
    listed = finish(start("plugins"))

    assert listed.code == 1
    assert "RuntimeError: I am unwell" in listed.out
    assert "Traceback" not in listed.out + listed.err
