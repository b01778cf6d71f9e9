"""Who may see the page."""

from __future__ import annotations

from itertools import count

import pytest

from holdfast.page.access import Access, Verdict, is_this_host


@pytest.fixture
def access() -> Access:
    numbers = count()
    return Access(lambda: f"secret-{next(numbers)}")


def test_a_link_works_once_and_there_is_another_one_afterwards(access: Access) -> None:
    first = access.token

    assert access.open("wrong") == ""
    cookie = access.open(first)
    assert cookie
    assert access.open(first) == ""
    assert access.was_used(first)
    assert not access.was_used(access.token)
    assert access.open(access.token) not in ("", cookie)


def test_a_request_needs_this_host_the_cookie_and_for_changes_the_header(access: Access) -> None:
    cookie = access.open(access.token)

    def judge(host: str = "127.0.0.1:80", given: str = cookie, changes: bool = False, header: str = "") -> Verdict:
        return access.judge(host, given, changes=changes, header=header)

    assert judge() is Verdict.LET_IN
    assert judge(host="evil.example") is Verdict.WRONG_HOST
    assert judge(given="") is Verdict.NO_COOKIE
    assert judge(given=access.token) is Verdict.NO_COOKIE
    assert judge(changes=True) is Verdict.NO_HEADER
    assert judge(changes=True, header="1") is Verdict.LET_IN


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8266", True),
        ("LOCALHOST:1", True),
        ("[::1]:8266", True),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
        ("", False),
        ("10.0.0.1:80", False),
    ],
)
def test_only_names_of_loopback_are_answered(host: str, is_ours: bool) -> None:
    assert is_this_host(host) is is_ours
