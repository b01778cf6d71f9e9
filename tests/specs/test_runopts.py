"""Run options: what a scheduler lets the user choose."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Dict, List, Literal, Optional  # noqa: UP035 - schedulers written for TorchX use these

import pytest

from holdfast.errors import UsageError
from holdfast.facts import Fact, facts
from holdfast.specs import InvalidRunConfigError, runopt, runopts
from holdfast.specs.runopts import get_type_name


@pytest.fixture
def opts() -> runopts:
    opts = runopts()
    opts.add("queue", type_=str, help="where the job waits", required=True)
    opts.add("nodes", type_=int, help="how many", default=1)
    opts.add("share", type_=float, help="how much of each", default=0.5)
    opts.add("dry", type_=bool, help="only pretend", default=False)
    opts.add("tags", type_=list[str], help="words to find it by")
    opts.add("labels", type_=dict[str, str], help="what it is marked with")
    opts.add("size", type_=Literal["small", "large"], help="how big", default="small")
    opts.add("account", type_=Optional[str], help="who pays")  # noqa: UP045
    return opts


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    yield heard
    stop()


def test_defaults_are_filled_in(opts: runopts) -> None:
    assert opts.resolve({"queue": "gpu", "nodes": 3, "dry": None}) == {
        "queue": "gpu",
        "nodes": 3,
        "share": 0.5,
        "dry": False,
        "tags": None,
        "labels": None,
        "size": "small",
        "account": None,
    }


def test_resolving_leaves_what_was_given_alone(opts: runopts) -> None:
    given = {"queue": "gpu"}

    opts.resolve(given)

    assert given == {"queue": "gpu"}


@pytest.mark.parametrize("missing", [{}, {"queue": None}])
def test_a_required_option_that_is_missing_is_named(opts: runopts, missing: dict[str, None]) -> None:
    with pytest.raises(InvalidRunConfigError, match=r"'queue' is required.*queue=STR.*where the job waits") as caught:
        opts.resolve(missing)

    assert caught.value.cfg_key == "queue"
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("queue", 1, r"'queue' is 1 \(int\) but must be str"),
        ("nodes", "2", r"'nodes' is '2' \(str\) but must be int"),
        ("nodes", True, r"'nodes' is True \(bool\) but must be int"),
        ("share", "x", r"'share' is 'x' \(str\) but must be float"),
        ("dry", 1, r"'dry' is 1 \(int\) but must be bool"),
        ("tags", "a,b", r"'tags' is 'a,b' \(str\) but must be list\[str\]"),
        ("tags", [1], r"'tags' is \[1\] \(list\) but must be list\[str\]"),
        ("labels", {"a": 1}, r"'labels' is \{'a': 1\} \(dict\) but must be dict\[str, str\]"),
        ("size", "huge", r"'size' is 'huge' \(str\) but must be 'small' or 'large'"),
        ("account", 3, r"'account' is 3 \(int\) but must be str"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_it_should_be(
    opts: runopts, key: str, value: object, wanted: str
) -> None:
    with pytest.raises(InvalidRunConfigError, match=wanted) as caught:
        opts.resolve({"queue": "gpu", key: value})  # type: ignore[dict-item]

    assert caught.value.cfg_key == key


def test_a_whole_number_will_do_for_a_fraction(opts: runopts) -> None:
    assert opts.resolve({"queue": "q", "share": 1})["share"] == 1


def test_an_unknown_option_passes_through_with_a_warning_and_a_close_match(opts: runopts, told: list[Fact]) -> None:
    resolved = opts.resolve({"queue": "gpu", "lables": "x", "zzz": 1})

    assert (resolved["lables"], resolved["zzz"]) == ("x", 1)
    assert [fact.sentence for fact in told] == [
        "the run option 'lables' is not known here; did you mean 'labels'?",
        "the run option 'zzz' is not known here; `holdfast runopts` lists the known ones",
    ]


def test_one_line_gives_typed_values(opts: runopts) -> None:
    line = "queue='a,b',nodes=3;share=2,dry=yes,tags=x,'y;z';labels=a:1,b:2,size=large,account=me,mine=text"

    assert opts.cfg_from_str(line) == {
        "queue": "a,b",
        "nodes": 3,
        "share": 2.0,
        "dry": True,
        "tags": ["x", "y;z"],
        "labels": {"a": "1", "b": "2"},
        "size": "large",
        "account": "me",
        "mine": "text",
    }
    assert opts.cfg_from_str("") == {}


@pytest.mark.parametrize(
    ("line", "key", "why"),
    [
        ("dry=maybe", "dry", "the run option 'dry' must be bool, and 'maybe' is neither true nor false"),
        ("nodes=many", "nodes", "the run option 'nodes' must be int, and 'many' is not a number"),
        ("labels=a", "labels", "the run option 'labels' must be dict.*'a' is not of the form key:value"),
        ("size=huge", "size", "the run option 'size' must be 'small' or 'large', and 'huge' is not one of them"),
        ("queue", "queue", "'queue' is not of the form key=value: write run options as key=value"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_the_key(opts: runopts, line: str, key: str, why: str) -> None:
    with pytest.raises(InvalidRunConfigError, match=why) as caught:
        opts.cfg_from_str(line)

    assert caught.value.cfg_key == key


def test_json_gives_typed_values(opts: runopts) -> None:
    text = (
        '{"queue": "gpu", "nodes": "3", "tags": [1, "b"], "labels": {"a": 1}, "dry": "on", "account": null, "x": [2]}'
    )

    assert opts.cfg_from_json_repr(text) == {
        "queue": "gpu",
        "nodes": 3,
        "tags": ["1", "b"],
        "labels": {"a": "1"},
        "dry": True,
        "account": None,
        "x": [2],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "must be a JSON object, not list"),
        ('{"nodes": "many"}', "'nodes' must be int"),
        ('{"nodes": 1.5}', "'nodes' must be int"),
    ],
)
def test_json_that_does_not_fit_is_refused(opts: runopts, text: str, why: str) -> None:
    with pytest.raises(InvalidRunConfigError, match=why):
        opts.cfg_from_json_repr(text)


def test_options_in_the_older_spelling_of_types_are_the_same() -> None:
    opts = runopts()
    opts.add("tags", type_=List[str], help="words", default=["a"])  # noqa: UP006
    opts.add("labels", type_=Dict[str, str], help="marks")  # noqa: UP006
    opts.add("nodes", type_=int | None, help="how many")

    assert opts.cfg_from_str("tags=a,b,labels=k:v,nodes=2") == {"tags": ["a", "b"], "labels": {"k": "v"}, "nodes": 2}
    assert [option.type_name for _, option in opts] == ["list[str]", "dict[str, str]", "int"]
    tags = opts.get("tags")
    assert tags is not None
    assert tags.is_type_list_of_str
    assert not tags.is_type_dict_of_str


@pytest.mark.parametrize(
    ("default", "required", "why"),
    [("a", True, "required, so it cannot have the default"), (1, False, "not of type str")],
)
def test_an_option_that_contradicts_itself_is_refused(default: str, required: bool, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        runopts().add("queue", type_=str, help="", default=default, required=required)


def test_sets_of_options_are_looked_through_and_joined(opts: runopts) -> None:
    more = runopts()
    more.add("nodes", type_=int, help="how many", default=8)
    more.add("extra", type_=str, help="more")

    opts.update(more)

    assert len(opts) == 9
    assert opts.get("nodes") == runopt(default=8, opt_type=int, is_required=False, help="how many")
    assert opts.get("nothing") is None
    assert [key for key, _ in opts][-1] == "extra"
    assert "extra" in opts
    assert [key for key, _ in copy.deepcopy(opts)] == [key for key, _ in opts]


def test_printed_they_tell_a_person_what_to_write(opts: runopts) -> None:
    text = repr(opts)

    assert "queue=STR,[nodes=INT],[share=FLOAT],[dry=BOOL],[tags=A,B],[labels=A:1,B:2],[size=small|large]" in text
    assert "required:\n    queue (str)\n        where the job waits\n" in text
    assert "    nodes (int, default 1)\n        how many\n" in text
    assert repr(runopts()) == "no run options"


def test_the_error_survives_a_trip_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(InvalidRunConfigError("no", "queue", {"a": 1})))

    assert (str(error), error.cfg_key) == ("no", "queue")


def test_a_type_has_a_name_and_takes_some_values() -> None:
    assert (get_type_name(int), get_type_name(list[str])) == ("int", "list")
    assert get_type_name(List[str]) == "typing.List[str]"  # noqa: UP006
    assert runopts.is_type(["a"], list[str])
    assert not runopts.is_type("a", int)
