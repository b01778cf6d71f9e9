"""`holdfast builtins`, `validate`, `resources` and `completion`: what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Invoke


def test_components_are_listed_by_number(invoke: Invoke) -> None:
    lines = invoke("builtins").out.splitlines()

    assert lines[0] == f"Found {len(lines) - 1} builtin components:"
    assert lines[1] == "  1. dist.ddp"
    assert any(line.endswith(" utils.echo") for line in lines)
    assert {"name", "description"} == set(invoke("builtins", "--json").data[0])


def test_the_source_of_a_component_is_shown(invoke: Invoke) -> None:
    assert "def echo(" in invoke("builtins", "--print", "utils.echo").out
    assert "there is no component" in invoke("builtins", "--print", "utils.nothing").err


def test_components_are_checked_before_anybody_runs_them(invoke: Invoke) -> None:
    Path("mine.py").write_text(
        "from holdfast.specs import AppDef\n"
        "def good(name: str) -> AppDef: ...\n"
        "def bad(name, **more: int) -> AppDef: ...\n"
    )
    said = invoke("validate", "mine.py:good", "mine.py:bad", "nothing.there")

    assert said.code == 1
    assert "mine.py:good: ok" in said.out
    assert "mine.py:bad: cannot be run" in said.out
    assert "there is no component 'nothing.there'" in said.out
    assert invoke("validate", "mine.py:good").code == 0
    assert [each["ok"] for each in invoke("validate", "--json", "mine.py:good", "mine.py:bad").data] == [True, False]


def test_all_components_that_are_known_by_name_are_sound(invoke: Invoke) -> None:
    said = invoke("validate")

    assert said.code == 0, said.out
    assert "dist.ddp: ok" in said.out


def test_named_resources_are_shown_with_those_of_the_settings(invoke: Invoke) -> None:
    Path(".holdfast.toml").write_text("[resources.test_builtins_big]\ncpu = 96\ngpu = 8\nmemMB = 1000\n")

    assert invoke("resources", "--json", "test_builtins*").data["test_builtins_big"]["cpu"] == 96
    assert [line.split()[0] for line in invoke("resources", "gpu.*").out.splitlines()][:2] == ["NAME", "gpu.small"]
    assert "test_builtins_big" in invoke("resources").out
    assert "no named resource is called 'nothing'" in invoke("resources", "nothing").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete_our_words(invoke: Invoke, shell: str) -> None:
    assert "_HOLDFAST_COMPLETE" in invoke("completion", shell).out


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("holdfast sta", 1, "status"),
        ("holdfast run utils.ec", 2, "utils.echo"),
        ("holdfast run -s loc", 3, "local"),
        ("holdfast run --max-re", 2, "--max-restarts"),
        ("holdfast launch --crash", 2, "--crash-loop"),
        ("holdfast launch --start-method f", 3, "forkserver"),
        ("holdfast status ec", 2, "echo-"),
    ],
)
def test_words_are_completed(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, words: str, at: int, expected: str
) -> None:
    invoke("run", "utils.echo")
    for name, value in {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}.items():
        monkeypatch.setenv(name, value)

    assert f"plain,{expected}" in invoke().out
