"""Every public name of the others is there, with the same arguments, or it is said why not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.surface import compare, families, write

FAMILIES = [family for family in families.FAMILIES if families.table_path(family).exists()]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(family: str) -> dict[str, str]:
    if family == "torch":
        pytest.importorskip("torch", reason="some of these modules are about torch itself")
    different = compare.compare(write.kept(family), write.ours(family))
    # A module about torch cannot be compared where there is none.
    return {path: what for path, what in different.items() if "No module named 'torch'" not in what}


def test_what_is_absent_or_different_has_its_reason(family: str, found: dict[str, str]) -> None:
    known = write.reasons(family)

    without = {path: what for path, what in found.items() if write.reason_for(path, known) is None}

    assert not without, "\n".join(f"{path}: {what}" for path, what in without.items())


def test_no_reason_is_given_for_what_is_there(family: str, found: dict[str, str]) -> None:
    known = write.reasons(family)

    used = {write.reason_for(path, known) for path in found}

    assert not [pattern for pattern in known if pattern not in used]


def test_the_page_is_up_to_date() -> None:
    pytest.importorskip("torch", reason="some of these modules are about torch itself")

    assert write.page() == write.PAGE.read_text(), "run: python tests/compat/surface/write.py"


def entry(**more: Any) -> dict[str, Any]:
    return {"kind": "function", "arguments": [], **more}


def table(**names: Any) -> dict[str, Any]:
    return {"modules": {"m": names}}


POSITIONAL = "positional_or_keyword"
KEYWORD = "keyword_only"


@pytest.mark.parametrize(
    ("theirs", "ours", "sentences"),
    [
        ([["a", POSITIONAL, None]], [["a", POSITIONAL, None], ["b", POSITIONAL, "1"]], []),
        ([["a", POSITIONAL, None]], [["a", POSITIONAL, None], ["b", KEYWORD, None]], ["needs b as well"]),
        ([["a", POSITIONAL, "1"]], [["a", POSITIONAL, "2"]], ["the default of a is 2, not 1"]),
        ([["a", POSITIONAL, "1"]], [["b", POSITIONAL, "1"]], ["has no argument a"]),
        (
            [["a", POSITIONAL, None], ["b", POSITIONAL, None]],
            [["b", POSITIONAL, None], ["a", POSITIONAL, None]],
            ["the order of arguments is b, a, not a, b"],
        ),
        ([["args", "var_positional", None]], [], ["takes no args"]),
    ],
)
def test_arguments_are_compared_as_a_call_would_meet_them(theirs: Any, ours: Any, sentences: list[str]) -> None:
    assert list(compare.arguments(theirs, ours)) == sentences


def test_a_missing_name_a_missing_module_and_another_kind_are_found() -> None:
    theirs = {"modules": {"m": {"f": entry(), "g": entry()}, "n": {"h": entry()}}}
    ours = {"modules": {"m": {"g": {"kind": "module"}}, "n": "No module named 'n'"}}

    assert compare.compare(theirs, ours) == {
        "m.f": "absent",
        "m.g": "is a module, not a function",
        "n": "absent: No module named 'n'",
    }


def test_members_bases_and_values_are_compared() -> None:
    theirs = {"kind": "class", "bases": ["A"], "arguments": None, "members": {"x": entry(), "Y": constant("1")}}
    ours = {"kind": "class", "bases": [], "arguments": None, "members": {"Y": constant("2")}}

    assert compare.compare(table(C=theirs), table(C=ours)) == {
        "m.C": "does not derive from A",
        "m.C.x": "absent",
        "m.C.Y": "is 2, not 1",
    }


def constant(value: str) -> dict[str, Any]:
    return {"kind": "constant", "value": value}
