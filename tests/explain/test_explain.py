"""Every message can be read from the source, has a code of its own, and is on the page."""

import ast
import os
import pty
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from holdfast.cli import explain
from holdfast.errors import HoldfastError, UsageError
from holdfast.explain.collect import HOLE, Module, Source, code_of, collect, matches, raised_at, unexplained
from holdfast.explain.index import PATH
from holdfast.explain.reading import code_for, read_all
from holdfast.explain.words import OTHER, area_of, blame_of
from holdfast.quantities import parse_duration
from tests.messages_page import PAGE, index, page

MINE = """
class Mine(UsageError):
    def __init__(self, x):
        super().__init__(f'mine is {x}')
raise Mine(1)
"""


@pytest.fixture(scope="module")
def source():
    return read_all()


@pytest.fixture(scope="module")
def messages(source):
    return collect(source)


def small(text):
    return Source({"sample.py": Module(ast.parse(f"class UsageError(HoldfastError): ...\n{text}"))})


def test_no_message_is_made_in_a_way_that_cannot_be_read(source):
    assert unexplained(source) == []


def test_the_page_has_every_message(source):
    assert PAGE.read_text() == page(source), "run `python tests/messages_page.py`"


def test_the_package_carries_the_index_of_every_message(source):
    assert PATH.read_text() == index(source), "run `python tests/messages_page.py`"


def test_one_code_is_one_message(messages):
    texts = {}
    for one in messages:
        texts.setdefault(one.code, set()).add(one.text)

    assert [each for each in texts.values() if len(each) > 1] == []


def test_a_coordinators_refusals_are_its_own(messages):
    """Functions of the same name elsewhere say why a worker is not forked."""
    found = {one.text for one in messages if one.kind == "refusal"}

    assert f"{HOLE} has node rank {HOLE} already; give every node its own --node-rank" in found
    assert [text for text in found if "worker runs in another folder" in text or "is imported" in text] == []


def test_every_message_belongs_to_a_part_and_has_a_fault(source, messages):
    assert len(messages) > 700
    assert {one.module for one in messages if area_of(one.module) is OTHER} == set()
    assert all(blame_of(source, one.kind) for one in messages)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise UsageError(f'no job {name}; see {where}')", [f"no job {HOLE}; see {HOLE}"]),
        ("raise UsageError('one ' + two + f' {three}')", [f"one {HOLE} {HOLE}"]),
        ("raise UsageError('yes' if good else 'no')", ["yes", "no"]),
        ("WORDS = 'all {n} of them'\nraise UsageError(WORDS.format(n=3))", [f"all {HOLE} of them"]),
        ("def words(n):\n    return f'{n} words'\nraise UsageError(words(3))", [f"{HOLE} words"]),
        (MINE, [f"mine is {HOLE}"]),
        ("facts.warn('disk_full', f'no room in {place}')", [f"no room in {HOLE}"]),
        ("reply = Rejected('not today')", ["not today"]),
        ("warnings.warn('not a fact')", []),
        ("raise KeyError('not ours')", []),
        ("raise UsageError(str(error))", []),
    ],
)
def test_how_messages_are_found(code, found):
    assert [one.text for one in collect(small(code))] == found


def test_a_message_that_cannot_be_read_is_named():
    assert unexplained(small("raise UsageError(other.make(1))")) == ["sample.py:2: UsageError(other.make(1))"]


def test_the_code_of_an_exception_is_found_where_it_was_raised():
    with pytest.raises(UsageError) as raised:
        parse_duration("soon")

    assert code_for(raised.value) == code_of(f"'{HOLE}' is not a length of time: write seconds, or 300ms, 10m, 1h")


def test_an_exception_from_elsewhere_has_no_code():
    with pytest.raises(HoldfastError) as raised:
        raise UsageError("a test's own words")

    assert code_for(raised.value) == ""


def test_a_line_without_a_raise_raises_nothing(source):
    assert raised_at(source, "quantities.py", 1) == []


def test_a_template_fits_what_it_became():
    assert matches(f"no job {HOLE}; see {HOLE}", "no job x;\n  see `holdfast list`")
    assert not matches(f"no job {HOLE}", "no joy")


def test_a_terminal_shows_the_code_and_a_pipe_does_not():
    command = [sys.executable, "-m", "holdfast", "status", "no-such-job"]
    piped = subprocess.run(command, capture_output=True, text=True, check=False)
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stderr=theirs, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        process.wait()
    os.close(ours)

    code = re.search(r"\[explain (hf-\w+)\]", shown.decode())
    assert code is not None, shown
    assert f'<a id="{code[1]}"></a>' in PAGE.read_text()
    assert "there is no job 'no-such-job'" in piped.stderr
    assert "explain" not in piped.stderr


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the terminal of a process that has ended
        return b""


def test_explain_finds_a_message_by_its_code_its_words_and_a_part_of_them():
    words = "'soon' is not a length of time: write seconds, or 300ms, 10m, 1h"
    code = code_of(f"'{HOLE}' is not a length of time: write seconds, or 300ms, 10m, 1h")

    for asked in (code, code.removeprefix("hf-"), f"[{code}]", f"holdfast: {words}", "is not a length of time"):
        said = CliRunner().invoke(explain.command, [asked], catch_exceptions=False).output

        assert said.startswith(f"{code}  '{HOLE}' is not a length of time")
        assert "Change what the message names." in said
        assert f"docs/MESSAGES.md#{code}" in said
        assert re.search(r"source +holdfast/quantities\.py:\d+", said)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("Address already in use", "docs/TROUBLESHOOTING.md#cannot-listen-on--address-already-in-use"),
        ("waiting: 1 of 2 nodes (host-a); waiting for 1 more", "Compare `--rdzv-endpoint` and"),
        ("there is no component 'x'", "docs/TROUBLESHOOTING.md#there-is-no-component-"),
    ],
)
def test_explain_shows_what_the_docs_say(asked, told):
    assert told in CliRunner().invoke(explain.command, [asked], catch_exceptions=False).output


def test_explain_says_when_there_is_no_such_message():
    with pytest.raises(UsageError, match="no message of Holdfast is 'all is well'"):
        CliRunner().invoke(explain.command, ["all", "is", "well"], catch_exceptions=False)
