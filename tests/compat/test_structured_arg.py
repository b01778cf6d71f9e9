"""Arguments that hold several values in one text."""

from __future__ import annotations

import pytest

from holdfast.compat.torchx.structured_arg import StructuredJArgument, StructuredNameArgument
from holdfast.components.dist import _args_join, _noquote, get_role_name, parse_nnodes
from holdfast.errors import UsageError


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("/", "default-experiment/baz"),
        ("foo/bar", "foo/bar"),
        ("foo/", "foo/baz"),
        ("/bar", "default-experiment/bar"),
        ("bar", "default-experiment/bar"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_a_name_is_an_experiment_and_a_run(name: str, read: str) -> None:
    assert str(StructuredNameArgument.parse_from(name, script="bar/baz.py")) == read
    assert str(StructuredNameArgument.parse_from(name, m="bar.baz")) == read


def test_a_run_is_either_a_module_or_a_script() -> None:
    for both in ({}, {"m": "a", "script": "b.py"}):
        with pytest.raises(UsageError, match="either m, a module to run, or script"):
            StructuredNameArgument.parse_from("/", **both)


def test_a_size_takes_the_workers_from_the_machine() -> None:
    assert StructuredJArgument.parse_from("gpu.medium", "3") == StructuredJArgument(3, 2)
    assert str(StructuredJArgument.parse_from("cpu.small", "2x3")) == "2x3"
    with pytest.warns(UserWarning, match="asks for 4 workers on each node, and gpu.small has 1 GPUs"):
        assert StructuredJArgument.parse_from("gpu.small", "1x4").nproc_per_node == 4


@pytest.mark.parametrize(
    ("h", "j", "sentence"),
    [
        ("cpu.small", "2", "cpu.small has no GPUs; write -j 2x1"),
        ("gpu.small", "axb", "-j 'axb' must be NODES or NODESxWORKERS"),
        ("gpu.small", "1:2x3", "-j '1:2x3' must be NODES or NODESxWORKERS"),
    ],
)
def test_a_size_that_cannot_be_is_refused(h: str, j: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        StructuredJArgument.parse_from(h, j)


def test_what_other_components_import_from_dist() -> None:
    assert parse_nnodes("1:4x8") == (1, 4, 8, "1:4")
    assert parse_nnodes("2") == (1, 1, 2, "1")
    assert (get_role_name("a/b.py", None), get_role_name(None, "x.y")) == ("b", "y")
    assert _args_join(["a b", _noquote("$c d")]) == "'a b' $c d"
