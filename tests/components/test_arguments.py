"""From what was typed to the arguments of a component."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.components.arguments import materialize_appdef, parse
from holdfast.components.errors import HelpRequested
from holdfast.errors import ComponentValidationError, UsageError
from holdfast.specs import AppDef


class Mode(enum.Enum):
    FAST = 1
    SAFE = 2


def plain(
    name: str,
    steps: int = 10,
    rate: float = 0.5,
    dry_run: bool = False,
    maybe: Optional[int] = None,  # noqa: UP045 - the old spelling
    sure: bool | None = None,
    tags: list[str] | None = None,
    env: dict[str, str] | None = None,
    shape: tuple[int, int] = (1, 1),
    mode: Mode = Mode.SAFE,
    opt: Literal["adam", "sgd"] = "adam",
    out: Path = Path("out"),
    j: str = "1x2",
    h: str | None = None,
    workers: Annotated[int, "-w", "-nw"] = 1,
) -> AppDef:
    return AppDef(name)


def script(*script_args: str, path: str | None = None, j: int = 1, debug: bool = False) -> AppDef:
    return AppDef("script", metadata={"args": "|".join(script_args)})


def strict(*rest: str, name: str, size: int = 1) -> AppDef:
    return AppDef(name)


def placed(first: int, second: str = "x", *more: int, last: int = 0) -> AppDef:
    return AppDef("placed")


def values(*words: str, **known: Any) -> dict[str, Any]:
    """Parse for `plain` and return what differs from its defaults."""
    args, kwargs = parse(plain, ["--name", "n", *words], **known)
    assert not kwargs
    names = plain.__annotations__
    defaults = dict(
        zip([each for each in names if each not in ("name", "return")], plain.__defaults__ or (), strict=True)
    )
    given_ = dict(zip([each for each in names if each != "return"], args, strict=True))
    return {key: value for key, value in given_.items() if key != "name" and value != defaults[key]}


# -- spelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--steps", "3"], {"steps": 3}),
        (["--steps=3"], {"steps": 3}),
        (["--steps", "-3"], {"steps": -3}),
        (["--steps=1", "--steps=2"], {"steps": 2}),
        (["--rate", "-.5"], {"rate": -0.5}),
        (["--dry_run"], {"dry_run": True}),
        (["--dry-run"], {"dry_run": True}),
        (["--dry-run=yes"], {"dry_run": True}),
        (["--dry_run", "True"], {"dry_run": True}),
        (["--dry_run", "True", "--no-dry-run"], {}),
        (["--dry_run", "--no_dry_run"], {}),
        (["--dry_run=1", "--dry_run=off"], {}),
        (["--dry_run", "--steps", "1"], {"dry_run": True, "steps": 1}),
        (["--maybe", "3"], {"maybe": 3}),
        (["--sure"], {"sure": True}),
        (["--no-sure"], {"sure": False}),
        (["--tags", "a,b", "--tags", "c"], {"tags": ["a", "b", "c"]}),
        (["--env", "A=1", "--env", "B=2,C=3", "--env=A=4"], {"env": {"A": "4", "B": "2", "C": "3"}}),
        (["--shape", "2,3"], {"shape": (2, 3)}),
        (["--mode", "fast"], {"mode": Mode.FAST}),
        (["--opt", "sgd"], {"opt": "sgd"}),
        (["--out", "/x"], {"out": Path("/x")}),
        (["-j", "2x4"], {"j": "2x4"}),
        (["-j2x4"], {"j": "2x4"}),
        (["-j=2x4"], {"j": "2x4"}),
        (["--j", "2x4"], {"j": "2x4"}),
        (["-h", "gpu.small"], {"h": "gpu.small"}),
        (["-w", "4"], {"workers": 4}),
        (["-nw", "4"], {"workers": 4}),
        (["-w4"], {"workers": 4}),
        (["--h", "--not-a-flag-of-this"], {"h": "--not-a-flag-of-this"}),
        (["--h="], {"h": ""}),
    ],
    ids=str,
)
def test_a_flag_may_be_spelled_in_every_usual_way(words: list[str], value: dict[str, Any]) -> None:
    assert values(*words) == value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "abc"], "--steps 'abc' must be int"),
        (["--steps="], "--steps '' must be int"),
        (["--maybe", "x"], "--maybe 'x' must be int or none"),
        (["--dry-run=perhaps"], "--dry-run 'perhaps' must be bool"),
        (["--tags"], "--tags needs a value: list[str] or none"),
        (["--steps", "--rate", "1"], "--steps needs a value: int"),
        (["--steps", "--no-sure"], "--steps needs a value: int"),
        (["--steps", "--"], "--steps needs a value: int"),
        (["--shape", "1"], "--shape '1' must be tuple[int, int]: 2 values are wanted, not 1"),
        (["--shape", "1,x"], "--shape '1,x' must be tuple[int, int]: 'x' is not int"),
        (["--env", "A"], "--env 'A' must be dict[str, str] or none: 'A' is not KEY=VALUE"),
        (["--opt", "lion"], "--opt 'lion' must be one of adam, sgd"),
        (["--stepz", "1"], "plain has no flag --stepz; did you mean --steps?"),
        (["--dry-rum"], "plain has no flag --dry-rum; did you mean --dry_run?"),
        (["--xyzzy"], "plain has no flag --xyzzy; --help shows its flags"),
        (["-q"], "plain has no flag -q; --help shows its flags"),
        (["--no-steps"], "plain has no flag --no-steps; did you mean --steps?"),
        (["word"], "plain takes no argument 'word'; every value needs a flag, as in --name value"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence_that_names_the_flag(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        values(*words)

    assert str(caught.value) == said


def test_all_missing_flags_are_named_together() -> None:
    def needy(one: int, two: str, three: bool, four: int = 0) -> AppDef:
        return AppDef("needy")

    with pytest.raises(UsageError, match=r"^group.needy needs --one, --two and --three; --help shows what each is$"):
        parse(needy, [], name="group.needy")
    with pytest.raises(UsageError, match=r"^needy needs --two; "):
        parse(needy, ["--one", "1", "--three"])


@given(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.lists(st.text()),
    st.dictionaries(st.text(min_size=1), st.text()),
    st.text(),
)
@example(0, 0.0, False, ["NONE"], {}, "")
def test_whatever_is_written_comes_out_again(
    steps: int, rate: float, dry: bool, tags: list[str], env: dict[str, str], name: str
) -> None:
    from holdfast.components.signature import read_signature

    known = read_signature(plain).parameters
    given_ = {"name": name, "steps": steps, "rate": rate, "dry_run": dry, "tags": tags, "env": env}
    argv = [f"--{key}={known[key].type.write(value)}" for key, value in given_.items()]

    args, _ = parse(plain, argv)

    assert args[:4] == (name, steps, rate, dry)
    assert args[6:8] == (tags, env)


# -- what is passed through --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "args", "kwargs"),
    [
        ([], (), {}),
        (["a", "--j", "3", "--unknown"], ("a", "--j", "3", "--unknown"), {}),
        (["-j", "3", "a", "-j", "4"], ("a", "-j", "4"), {"j": 3}),
        (["--", "--j", "3"], ("--j", "3"), {}),
        (["--path", "x", "--", "--", "y"], ("--", "y"), {"path": "x"}),
        (["a", "--", "b"], ("a", "--", "b"), {}),
        (["-5"], ("-5",), {}),
        (["-"], ("-",), {}),
        (["--debug", "a"], ("a",), {"debug": True}),
        (["--debug", "false", "a"], ("a",), {"debug": False}),
    ],
    ids=str,
)
def test_everything_from_the_first_word_without_a_flag_is_passed_through(
    words: list[str], args: tuple[str, ...], kwargs: dict[str, Any]
) -> None:
    assert parse(script, words) == (args, kwargs)


def test_a_flag_that_the_script_was_to_get_is_told_how() -> None:
    with pytest.raises(UsageError, match=r"^script has no flag --lr; write -- before what is meant for script_args$"):
        parse(script, ["--lr", "1"])


def test_two_dashes_separate_nothing_where_nothing_is_passed_through() -> None:
    def trainer(name: str, size: int = 1) -> AppDef:
        return AppDef(name)

    assert parse(trainer, ["--", "--name", "test app"]) == (("test app", 1), {})
    assert parse(trainer, ["--name", "x", "--", "--size", "2"]) == (("x", 2), {})
    with pytest.raises(UsageError, match=r"takes no argument '--'"):
        parse(trainer, ["--", "--name", "x", "--", "--size", "2"])


def test_two_dashes_separate_nothing_while_required_flags_are_missing() -> None:
    assert parse(strict, ["--", "--name", "test app"]) == ((), {"name": "test app"})
    assert parse(strict, ["--", "--name", "x", "--", "--size", "2"]) == (("--size", "2"), {"name": "x"})
    assert parse(strict, ["--name", "x", "--", "--size", "2"]) == (("--size", "2"), {"name": "x"})
    # What the configuration gives is not missing.
    assert parse(strict, ["--", "--name", "y"], {"name": "x"}) == (("--name", "y"), {"name": "x"})


def test_parameters_before_the_rest_are_given_by_place() -> None:
    assert parse(placed, ["--first", "1", "7", "8"]) == ((1, "x", 7, 8), {})
    assert parse(placed, ["--last", "2", "--second", "y", "--first", "1"]) == ((1, "y"), {"last": 2})
    with pytest.raises(UsageError, match=r"^more: 'z' is not int$"):
        parse(placed, ["--first", "1", "z"])


# -- where values come from ------------------------------------------------------------------------------------------


def test_what_was_typed_beats_the_config_beats_the_defaults_beat_the_signature() -> None:
    known = {"defaults": {"steps": "1", "rate": "1", "j": "a"}, "config": {"steps": 2, "rate": 2.0}}

    assert values("--steps", "3", **known) == {"steps": 3, "rate": 2.0, "j": "a"}


def test_a_required_value_may_come_from_the_config() -> None:
    assert parse(strict, [], None, {"name": "x"}) == ((), {"name": "x"})
    assert parse(strict, [], {"name": "x"}) == ((), {"name": "x"})


def test_a_list_that_was_typed_takes_the_place_of_the_configured_one() -> None:
    assert values("--tags", "c", defaults={"tags": ["a", "b"]}) == {"tags": ["c"]}


def test_a_dictionary_of_values_is_checked_like_what_is_typed() -> None:
    args, kwargs = parse(script, {"path": "x", "j": "3", "script_args": ["a", "-b"]})

    assert (args, kwargs) == (("a", "-b"), {"path": "x", "j": 3})
    with pytest.raises(UsageError, match=r"^--j 1.5 must be int$"):
        parse(script, {"j": 1.5})
    assert parse(script, {"path": "x", "script_args": "a 'b c'"})[0] == ("a", "b c")  # as a settings file has it
    with pytest.raises(UsageError, match=r"^script_args must be a list, not 5$"):
        parse(script, {"script_args": 5})
    with pytest.raises(UsageError, match=r"^script_args: 3 is not str$"):
        parse(script, {"script_args": [3]})


@pytest.mark.parametrize("where", ["argv", "defaults", "config"])
def test_a_name_that_is_no_parameter_is_refused_wherever_it_stands(where: str) -> None:
    given_: dict[str, Any] = {"argv": [], where: {"pathh": "x"}}

    with pytest.raises(UsageError, match=r"^script has no argument 'pathh'; did you mean path\?$"):
        parse(script, **given_)


def test_dashes_are_fine_in_a_configured_name() -> None:
    assert values(defaults={"dry-run": True}) == {"dry_run": True}


def test_none_is_fine_where_it_is_the_default_although_the_type_does_not_say_so() -> None:
    def old(name: str = None) -> AppDef:  # type: ignore[assignment]  # noqa: RUF013
        return AppDef("old")

    assert parse(old, {"name": None}) == ((None,), {})
    with pytest.raises(UsageError, match=r"--steps None must be int"):
        parse(plain, {"name": "n", "steps": None})


# -- from arguments to the app ---------------------------------------------------------------------------------------


def test_the_app_is_what_the_component_returns() -> None:
    app = materialize_appdef(script, ["--", "a", "--b"])

    assert app == AppDef("script", metadata={"args": "a|--b"})


def test_a_component_that_returns_no_app_is_refused() -> None:
    def nothing() -> AppDef:
        return None  # type: ignore[return-value]

    def other() -> AppDef:
        return []  # type: ignore[return-value]

    with pytest.raises(ComponentValidationError, match=r"'foo.nothing' returned None, not an AppDef"):
        materialize_appdef(nothing, [], name="foo.nothing")
    with pytest.raises(ComponentValidationError, match=r"'other' returned a builtins.list, not an AppDef"):
        materialize_appdef(other, {})


def test_an_app_of_another_torchx_is_told_apart_from_ours() -> None:
    foreign = type("AppDef", (), {"__module__": "torchx.specs.api"})

    def theirs() -> AppDef:
        return foreign()  # type: ignore[no-any-return]

    with pytest.raises(ComponentValidationError, match=r"returned a torchx.specs.api.AppDef, not ours"):
        materialize_appdef(theirs, [])


def test_what_is_no_component_says_why() -> None:
    def bad(x, **more: int) -> AppDef:  # type: ignore[no-untyped-def]
        return AppDef("bad")

    with pytest.raises(ComponentValidationError, match=r"'bad' cannot .*'x' has no type.*\*\*more cannot be given"):
        parse(bad, [])


@pytest.mark.parametrize("words", [["--help"], ["--steps", "3", "--help"], ["--dry_run", "--help"]])
def test_help_is_asked_for_where_flags_are_read(words: list[str]) -> None:
    with pytest.raises(HelpRequested, match=r"^Usage: holdfast run foo.plain --name NAME"):
        parse(plain, words, name="foo.plain")


def test_help_for_the_script_is_passed_through() -> None:
    assert parse(script, ["train.py", "--help"])[0] == ("train.py", "--help")
    assert parse(script, ["--", "--help"])[0] == ("--help",)


def test_the_short_flag_for_help_is_left_to_a_parameter_of_that_name() -> None:
    with pytest.raises(HelpRequested):
        parse(script, ["-h"])
    with pytest.raises(UsageError, match=r"-h needs a value: str or none"):
        parse(plain, ["--name", "n", "-h"])
