"""Words are read as torchrun reads them; where torch is installed, torchrun's own parser says what is right."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from holdfast.cli.launch import command as launch
from holdfast.errors import UsageError
from holdfast.launcher.config import split_filters
from holdfast.launcher.options import FLAGS, OPTIONS, Option
from holdfast.launcher.words import arrange, find_flag

#: What each command line means: the script, its arguments, and the flags that were given.
LINES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "script.py": ("script.py", [], {}),
    "script.py -- --x 5": ("script.py", ["--x", "5"], {}),
    "script.py --": ("script.py", [], {}),
    "script.py -- -- x": ("script.py", ["--", "x"], {}),
    "script.py a -- b": ("script.py", ["a", "--", "b"], {}),
    "script.py a -- -- b -- c": ("script.py", ["a", "--", "--", "b", "--", "c"], {}),
    "-- script.py --x": ("script.py", ["--x"], {}),
    "-- script.py -- --x": ("script.py", ["--", "--x"], {}),
    "-- -- script.py": ("--", ["script.py"], {}),
    "-m mod -- --x": ("mod", ["--x"], {"module": True}),
    "-m -- mod x": ("mod", ["x"], {"module": True}),
    "--no-python prog -- x": ("prog", ["x"], {"no_python": True}),
    "--nnodes 2 -- s.py -- y": ("s.py", ["--", "y"], {"nnodes": "2"}),
    "s.py --bogus --nnodes 3": ("s.py", ["--bogus", "--nnodes", "3"], {}),
    "--tee 3 s.py --tee 1": ("s.py", ["--tee", "1"], {"tee": "3"}),
    "--nproc_per=2 s.py": ("s.py", [], {"nproc_per_node": "2"}),
    "--nproc-per 2 s.py": ("s.py", [], {"nproc_per_node": "2"}),
    "--redirect 3 s.py": ("s.py", [], {"redirects": "3"}),
    "--re 3 s.py": ("s.py", [], {"redirects": "3"}),
    "--max_rest 1 s.py": ("s.py", [], {"max_restarts": 1}),
    "--log- x s.py": ("s.py", [], {"log_dir": "x"}),
    "--log_ x s.py": ("s.py", [], {"log_dir": "x"}),
    "--local_a h s.py": ("s.py", [], {"local_addr": "h"}),
    "--stan s.py": ("s.py", [], {"standalone": True}),
    "--t 3 s.py": ("s.py", [], {"tee": "3"}),
    "--master_p 5 s.py": ("s.py", [], {"master_port": 5}),
    "--event- console s.py": ("s.py", [], {"event_log_handler": "console"}),
    "-r3 s.py": ("s.py", [], {"redirects": "3"}),
    "-r=3 s.py": ("s.py", [], {"redirects": "3"}),
    "-mr3 mod": ("mod", [], {"module": True, "redirects": "3"}),
    "-t 3 -r 1 s.py": ("s.py", [], {"tee": "3", "redirects": "1"}),
    "--nnodes 2 --nnodes 3 s.py": ("s.py", [], {"nnodes": "3"}),
    "--node-rank -1 s.py": ("s.py", [], {"node_rank": -1}),
    "--role=-x s.py": ("s.py", [], {"role": "-x"}),
    "--role '-x y' s.py": ("s.py", [], {"role": "-x y"}),
    "--nnodes= s.py": ("s.py", [], {"nnodes": ""}),
    "-1 s.py": ("-1", ["s.py"], {}),
    "- a": ("-", ["a"], {}),
    "'-a b' c": ("-a b", ["c"], {}),
    "--rdzv-conf 'a=1, b=2' s.py": ("s.py", [], {"rdzv_conf": "a=1, b=2"}),
}
#: Command lines that neither takes.
REFUSED = [
    "--rdzv x s.py",
    "--m s.py",
    "--no s.py",
    "--n 2 s.py",
    "--log x s.py",
    "--sta s.py",
    "--bogus s.py",
    "--module=1 m",
    "-m2 s.py",
    "--nnodes",
    "--nnodes -- s.py",
    "--nnodes --standalone s.py",
    "--role -x s.py",
    "-r -- 3",
    "--max-restarts x s.py",
    "--start-method x s.py",
]


def ours(words: list[str]) -> tuple[str, list[str], dict[str, Any]]:
    params = dict(launch.make_context("launch", list(words)).params)
    script, args = params.pop("script"), list(params.pop("script_args"))
    return script, args, {name: value for name, value in params.items() if value != OPTIONS[name].default}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable or f"PET_{option.name.upper()}", raising=False)


@pytest.fixture(scope="module")
def theirs() -> Callable[[list[str]], tuple[str, list[str], dict[str, Any]]]:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()

    def parse(words: list[str]) -> tuple[str, list[str], dict[str, Any]]:
        with contextlib.redirect_stderr(io.StringIO()):
            values = vars(parser.parse_args(words))
        script, args = values.pop("training_script"), values.pop("training_script_args")
        return script, args, {name: value for name, value in values.items() if value != parser.get_default(name)}

    return parse


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_means_what_it_means_to_torchrun(line: str) -> None:
    assert ours(shlex.split(line)) == LINES[line]


@pytest.mark.parametrize("line", LINES)
def test_the_table_is_true_of_torchrun(line: str, theirs: Callable[..., Any]) -> None:
    assert theirs(shlex.split(line)) == LINES[line]


@pytest.mark.parametrize("line", REFUSED)
def test_what_torchrun_refuses_is_refused(line: str) -> None:
    import click

    with pytest.raises((UsageError, click.ClickException)):
        ours(shlex.split(line))


@pytest.mark.parametrize("line", REFUSED)
def test_the_refused_are_refused_by_torchrun(line: str, theirs: Callable[..., Any]) -> None:
    with pytest.raises(SystemExit):
        theirs(shlex.split(line))


def test_an_ambiguous_prefix_names_what_it_could_be() -> None:
    with pytest.raises(UsageError) as caught:
        arrange(["--rdzv", "x"], FLAGS)

    assert str(caught.value) == (
        "--rdzv could be --rdzv-endpoint, --rdzv-id, --rdzv-backend or --rdzv-conf; write more of it"
    )


def test_a_value_that_looks_like_a_flag_is_asked_for_with_an_equals_sign() -> None:
    with pytest.raises(UsageError, match="option '--role' requires an argument; write --role=-x if that is the value"):
        arrange(["--role", "-x", "s.py"], FLAGS)


def test_a_flag_of_ours_may_be_cut_short_where_torchrun_has_none_like_it() -> None:
    assert arrange(["--crash", "3", "--rest=1s", "s.py"], FLAGS)[:2] == ["--crash-loop", "3"]
    with pytest.raises(UsageError, match="--res could be --restart-backoff or --reset-restarts"):
        arrange(["--res", "1s", "s.py"], FLAGS)


def test_our_flags_leave_every_prefix_of_torchruns_its_meaning() -> None:
    """Every prefix that means one flag of torchrun's means that one here."""
    torchruns = [*(option.flag for option in OPTIONS.values() if option.torchrun), "--help"]
    prefixes = {flag[:length] for flag in torchruns for length in range(3, len(flag) + 1)}

    for prefix in prefixes - set(FLAGS):
        fitting = [flag for flag in torchruns if flag.startswith(prefix)]
        if len(fitting) == 1:
            found = find_flag(prefix, FLAGS)
            assert found is not None
            assert found.name == fitting[0]


def test_torchruns_flags_are_those_of_torchrun(theirs: Callable[..., Any]) -> None:
    from torch.distributed.run import get_args_parser

    names = {action.dest for action in get_args_parser()._actions} - {"help", "training_script", "training_script_args"}

    assert {option.name for option in OPTIONS.values() if option.torchrun} == names


#: Torchrun's defaults where ours differ.
DEFAULTS = {
    "event_log_handler": "null",
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "rdzv_backend": "static",
    "duplicate_stdout_filters": None,
    "duplicate_stderr_filters": None,
}
#: What counts as not given, for a flag of these and for any other.
NOTHING = {True: (None, ""), False: (None,)}

# -- any command line ------------------------------------------------------------------------------------------------

#: A value of two dashes is one that Python 3.11 itself reads wrongly.
_WORD = st.text("abxyz019_-=.,:/ ", max_size=6).filter(lambda text: text != "--")


def _values(option: Option) -> st.SearchStrategy[str]:
    if option.values:
        return st.sampled_from(option.values)
    if option.name == "monitor_interval":
        return st.sampled_from(["0.5", "3", "1e1"])
    # Numbers that are too small are refused by both, by torchrun only once it has read everything.
    return _WORD if option.type is str else st.integers(-3 if option.least is None else 0, 99).map(str)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command line of torchrun's flags, in full or cut short, with dashes or underscores."""
    words: list[str] = []
    for option in draw(st.lists(st.sampled_from([each for each in OPTIONS.values() if each.torchrun]), max_size=5)):
        flag = option.flag[: draw(st.integers(3, len(option.flag)))] if draw(st.booleans()) else option.flag
        flag = draw(st.sampled_from([flag, flag[:2] + flag[2:].replace("-", "_"), option.short or flag]))
        if option.is_flag:
            words.append(flag)
            continue
        value = draw(_values(option))
        words += [f"{flag}={value}"] if draw(st.booleans()) else [flag, value]
    words += ["--"] if draw(st.booleans()) else []
    rest = st.sampled_from(["--", "-", "--x", "-y", "5", "a b", "--nnodes", "s.py", "-m", ""])
    return [*words, *draw(st.lists(rest, max_size=4))]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=command_lines())
def test_any_command_line_that_torchrun_takes_means_the_same(words: list[str], theirs: Callable[..., Any]) -> None:
    try:
        script, args, flags = theirs(words)
    except SystemExit:
        assume(False)
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if name in flags:
            flags[name] = [each for each in flags[name] if each] or None

    our_script, our_args, our_flags = ours(words)
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if name in our_flags or name in flags:
            our_flags[name] = split_filters(our_flags.get(name, ""))
    assert (our_script, our_args) == (script, args)
    for name in {*flags, *our_flags}:
        # Not given, or given as nothing, some have other defaults here.
        default = DEFAULTS.get(name, OPTIONS[name].default)
        mine, other = (
            default if found.get(name) in NOTHING[name in DEFAULTS] else found[name] for found in (our_flags, flags)
        )
        assert mine == other, name
