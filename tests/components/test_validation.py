"""What keeps a function from being a component."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import specs
from holdfast.components.signature import returns_app
from holdfast.components.validation import validate
from holdfast.specs import AppDef

if TYPE_CHECKING:
    from decimal import Decimal

    from nowhere import AppDef as Unseen  # type: ignore[import-not-found]


def good(*args: str, x: int, y: "list[str] | None" = None) -> specs.AppDef:  # noqa: UP037 - quoted on purpose
    return AppDef("good")


def bad(
    untyped,  # type: ignore[no-untyped-def]
    odd: complex,
    unseen: Decimal,
    *more: set[int],
    **rest: int,
) -> int:
    return 1


def test_a_good_component_has_no_problems() -> None:
    assert validate(good) == []


def test_every_problem_is_named_with_its_line() -> None:
    first = inspect.getsourcelines(bad)[1]

    found = [(problem.line, problem.reason) for problem in validate(bad)]

    assert [line for line, _ in found] == [first + offset for offset in (1, 2, 3, 4, 5, 6)]
    assert [reason for _, reason in found] == [
        "'untyped' has no type; write untyped: str",
        "the type complex cannot be given as a flag",
        "the type Decimal cannot be resolved: name 'Decimal' is not defined",
        "the type set[int] cannot be given as a flag",
        "**rest cannot be given as flags; name each parameter",
        "the return type is not AppDef; write -> AppDef",
    ]


def test_a_problem_says_where_it_is() -> None:
    problem = validate(bad)[0]

    assert str(problem) == f"{__file__}:{problem.line}: bad: 'untyped' has no type; write untyped: str"


def returns_text() -> "specs.AppDef":  # noqa: UP037 - quoted on purpose
    return AppDef("x")


def returns_unseen() -> Unseen:
    return AppDef("x")


def returns_unseen_by_path() -> nowhere.specs.AppDef:  # type: ignore[name-defined]  # noqa: F821
    return AppDef("x")


def returns_nothing():  # type: ignore[no-untyped-def]
    return AppDef("x")


class OwnApp(AppDef):
    pass


def returns_own() -> OwnApp:
    return OwnApp("x")


@functools.wraps(good)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return good(*args, **kwargs)


@pytest.mark.parametrize("fn", [good, returns_text, returns_unseen_by_path, returns_own, wrapped])
def test_an_app_is_promised_by_class_by_text_and_by_what_cannot_be_resolved(fn: Callable[..., Any]) -> None:
    assert returns_app(fn)


@pytest.mark.parametrize("fn", [bad, returns_unseen, returns_nothing])
def test_no_app_is_promised_without_its_name(fn: Callable[..., Any]) -> None:
    assert not returns_app(fn)


def test_a_wrapped_component_has_the_signature_of_what_it_wraps() -> None:
    assert validate(wrapped) == []


def test_two_parameters_may_not_share_a_flag() -> None:
    from typing import Annotated

    def shared(n: int = 1, workers: Annotated[int, "-n"] = 1) -> AppDef:
        return AppDef("x")

    # A local import is not seen by text annotations, so they are given as they are.
    shared.__annotations__ = {"n": int, "workers": Annotated[int, "-n"], "return": AppDef}

    assert [problem.reason for problem in validate(shared)] == ["the flag -n is that of 'n' already"]


def test_what_is_no_function_is_said_so() -> None:
    assert [problem.reason for problem in validate(3)] == ["this is not a function"]  # type: ignore[arg-type]


def test_a_function_without_source_has_problems_without_lines() -> None:
    names: dict[str, Any] = {}
    exec("def made(x): pass", names)

    assert {problem.line for problem in validate(names["made"])} == {None}
