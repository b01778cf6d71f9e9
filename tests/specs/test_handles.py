"""A handle finds a job again."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.specs import (
    MalformedAppHandleError,
    ParsedAppHandle,
    UnknownAppError,
    UnknownSchedulerError,
    make_app_handle,
    parse_app_handle,
)


@pytest.mark.parametrize("parts", [("local", "holdfast", "echo-1"), ("kubernetes", "", "ns:job_2")])
def test_a_handle_comes_apart_into_what_it_was_made_of(parts: tuple[str, str, str]) -> None:
    assert parse_app_handle(make_app_handle(*parts)) == ParsedAppHandle(*parts)


@pytest.mark.parametrize("text", ["", "echo-1", "local://holdfast", "local://holdfast/", "://a/b", "local:/a/b"])
def test_what_is_no_handle_is_shown_one(text: str) -> None:
    with pytest.raises(MalformedAppHandleError, match="which looks like local://holdfast/echo"):
        parse_app_handle(text)


def test_what_is_not_there_is_named() -> None:
    assert "local://holdfast/x" in str(UnknownAppError("local://holdfast/x"))
    assert "'slrum'" in str(UnknownSchedulerError("slrum"))
    assert issubclass(UnknownAppError, UsageError)
