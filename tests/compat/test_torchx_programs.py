"""Programs and plugins written for TorchX run on ours: runners, schedulers, commands, checks, settings, helpers."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import logging
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035 - what these programs are written with
from unittest import mock

import pytest

from holdfast import compat
from holdfast.testing.memory_scheduler import MemoryScheduler


@pytest.fixture(autouse=True)
def _asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("TORCHX")] + ["HOLDFAST_CONFIG"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    take_back = compat.install("torchx")
    yield
    take_back()


# -- runners and schedulers --------------------------------------------------------------------------------------------


def test_a_runner_that_derives_from_torchxs_and_records_events_runs_jobs() -> None:
    # As programs that bring a runner of their own write it.
    from torchx.runner.api import Runner
    from torchx.runner.events import log_event
    from torchx.specs import AppDef, AppDryRunInfo, AppHandle, Role, make_app_handle, parse_app_handle
    from torchx.util.types import none_throws

    class OwnRunner(Runner):  # type: ignore[misc, valid-type]
        def dryrun(self, app: AppDef, scheduler: str, cfg: Any = None, *_: Any, **__: Any) -> AppDryRunInfo:  # type: ignore[type-arg, valid-type]
            with log_event("dryrun", scheduler):
                backend = self._scheduler(scheduler)
                backend._validate(app, scheduler)
                info = backend.submit_dryrun(app, cfg or {})
                info._scheduler = scheduler
                return info

        def schedule(self, dryrun_info: AppDryRunInfo) -> AppHandle:  # type: ignore[type-arg, valid-type]
            scheduler = none_throws(dryrun_info._scheduler)
            image = none_throws(dryrun_info._app).roles[0].image
            with log_event("schedule", scheduler, app_image=image) as ctx:
                app_id = self._scheduler(scheduler).schedule(dryrun_info)
                handle = make_app_handle(scheduler, self._name, app_id)
                self._apps[handle] = none_throws(dryrun_info._app)
                ctx._torchx_event.app_id = parse_app_handle(handle)[2]
                return handle

    with OwnRunner("mine", {"memory": MemoryScheduler}) as runner:
        handle = runner.run(AppDef("app", [Role("r", "image", entrypoint="echo", args=["hello"])]), "memory")
        status = runner.wait(handle, wait_interval=0.1)

        assert handle.startswith("memory://mine/app-")
        assert status is not None
        assert status.state.name == "SUCCEEDED"
        assert list(runner.log_lines(handle, "r")) == ["hello"]  # as its scheduler gives them
        assert runner.name() == "mine"


def test_a_scheduler_with_the_options_of_a_workspace_and_logs_in_files(tmp_path: Path) -> None:
    from torchx.runner import Runner
    from torchx.schedulers.api import (
        AppDryRunInfo,
        DescribeAppResponse,
        ListAppResponse,
        Scheduler,
        Stream,
        filter_regex,
        split_lines_iterator,
    )
    from torchx.schedulers.ids import make_unique
    from torchx.schedulers.local_scheduler import LogIterator
    from torchx.specs import AppDef, AppState, Role, runopts
    from torchx.workspace.api import WorkspaceMixin

    class Own(WorkspaceMixin[None], Scheduler[Any]):  # type: ignore[misc, type-arg, valid-type]
        def __init__(self, session_name: str) -> None:
            super().__init__("own", session_name)

        def workspace_opts(self) -> runopts:  # type: ignore[valid-type]
            opts = runopts()
            opts.add("image_repo", type_=str, help="where images go")
            return opts

        def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Any) -> None:  # type: ignore[valid-type]
            role.image = f"{cfg['image_repo']}/{Path(workspace).name}"

        def _run_opts(self) -> runopts:  # type: ignore[valid-type]
            opts = runopts()
            opts.add("queue", type_=str, help="which queue", required=True)
            return opts

        def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:  # type: ignore[type-arg, valid-type]
            return AppDryRunInfo({"image": app.roles[0].image, **cfg}, repr)

        def schedule(self, dryrun_info: AppDryRunInfo) -> str:  # type: ignore[type-arg, valid-type]
            app_id = str(make_unique("job"))
            (tmp_path / app_id).write_text(f"{dryrun_info.request}\nsecond\n")
            return app_id

        def _validate(self, app: AppDef, scheduler: str) -> None:  # type: ignore[override, valid-type]
            pass

        def describe(self, app_id: str) -> Optional[DescribeAppResponse]:  # type: ignore[valid-type]  # noqa: UP045
            return DescribeAppResponse(app_id, AppState.SUCCEEDED) if (tmp_path / app_id).exists() else None

        def list(self) -> List[ListAppResponse]:  # type: ignore[override, valid-type]  # noqa: UP006
            return [ListAppResponse(each.name, AppState.SUCCEEDED) for each in tmp_path.glob("job-*")]

        def _cancel_existing(self, app_id: str) -> None:
            pass

        def log_iter(self, app_id: str, role_name: str, k: int = 0, regex: Any = None, *_: Any) -> Any:
            lines = split_lines_iterator(LogIterator(app_id, str(tmp_path / app_id), self, should_tail=False))
            return filter_regex(regex, lines) if regex else lines

    runner = Runner("me", {"own": lambda session_name, **_: Own(session_name)})
    app = AppDef("app", [Role("r", "i", entrypoint="true")])
    assert [name for name, _ in runner.scheduler_run_opts("own")] == ["queue", "image_repo"]

    handle = runner.run(app, "own", {"queue": "q", "image_repo": "repo"}, workspace="/code/mine")

    assert "'image': 'repo/mine'" in "".join(runner.log_lines(handle, "r"))
    assert list(runner.log_lines(handle, "r", regex="sec")) == ["second\n"]
    assert [each.app_handle for each in runner.list("own")] == [handle]
    # The scheduler does not remember the roles of its jobs, and the runner that submitted them does.
    described = runner.describe(handle)
    assert described is not None
    assert described.roles[0].image == "repo/mine"
    assert Stream.COMBINED == "combined"


def test_events_are_serialised_as_torchxs_and_reach_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    from torchx.runner.events import SourceType, TorchxEvent, log_event, record
    from torchx.runner.events.handlers import get_logging_handler

    logger = logging.getLogger("torchx-events-null")
    logger.setLevel(logging.INFO)
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(KeyError), log_event("run", "local", "app-1", runcfg="{}", workspace="w"):
            raise KeyError("x")
        record(TorchxEvent("s", "local", "status"))
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(logging.NOTSET)

    first, second = [TorchxEvent.deserialize(text.getMessage()) for text in caplog.records]
    assert (first.api, first.scheduler, first.app_id, first.workspace) == ("run", "local", "app-1", "w")
    assert first.raw_exception is not None
    assert "KeyError: 'x'" in first.raw_exception
    assert first.start_epoch_time_usec is not None
    assert json.loads(str(second))["source"] == "<unknown>"
    assert second == TorchxEvent("s", "local", "status", source=SourceType.UNKNOWN)
    assert isinstance(get_logging_handler("null"), logging.NullHandler)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_are_read_as_torchxs_functions_give_them(tmp_path: Path) -> None:
    from torchx.runner.config import apply, find_configs, get_config, get_configs, load, load_sections

    file = tmp_path / ".torchxconfig"
    file.write_text(
        "[local_cwd]\nlog_dir = /tmp/logs\nprepend_cwd = True\nkeep = None\n"
        "[component:dist.ddp]\nj = 2x4\n[component:utils.echo]\nmsg = hi\n[cli:run]\ncomponent = dist.ddp\n"
    )

    assert find_configs() == find_configs([str(tmp_path)]) == [str(file)]
    assert load_sections("component") == {"dist.ddp": {"j": "2x4"}, "utils.echo": {"msg": "hi"}}
    assert get_configs("component", "dist.ddp", [str(tmp_path)]) == {"j": "2x4"}
    assert get_config("cli", "run", "component") == "dist.ddp"
    assert get_config("cli", "run", "nothing") is None
    applied: dict[str, Any] = {"log_dir": "mine"}
    apply("local_cwd", applied)
    loaded: dict[str, Any] = {"log_dir": "mine"}
    load("local_cwd", io.StringIO(file.read_text()), loaded)
    assert applied == loaded == {"log_dir": "mine", "prepend_cwd": True, "keep": None}


def test_settings_in_toml_are_sections_too(tmp_path: Path) -> None:
    from torchx.runner.config import load_sections

    (tmp_path / ".holdfast.toml").write_text('[component.dist.ddp]\nj = "2x4"\n[component."utils.echo"]\nmsg = "hi"\n')

    assert load_sections("component") == {"dist.ddp": {"j": "2x4"}, "utils.echo": {"msg": "hi"}}


def test_a_template_of_settings_is_written(tmp_path: Path) -> None:
    from torchx.runner.config import dump, load

    written = io.StringIO()
    dump(written, ["local_cwd"])
    cfg: dict[str, Any] = {}
    load("local_cwd", io.StringIO(written.getvalue()), cfg)

    assert written.getvalue().startswith("[local_cwd]\nlog_dir = None\nprepend_cwd = False\n")
    assert (cfg["prepend_cwd"], cfg["cancel_grace_s"], cfg["log_dir"]) == (False, 10.0, None)
    required = io.StringIO()
    dump(required, ["local_cwd"], required_only=True)
    assert required.getvalue() == "[local_cwd]\n\n"


# -- components --------------------------------------------------------------------------------------------------------

COMPONENTS = '''
import torchx.specs as specs
from torchx.specs import macros, named_resources

def trainer(*args: str, image: str, j: str = "1x2", env: dict[str, str] | None = None) -> specs.AppDef:
    """Trains.

    Args:
        args: What to train.
        image: Where.
    """
    return specs.AppDef("trainer", [specs.Role("r", image, entrypoint="echo", args=[*args, macros.app_id])])

def wrong(x, y: object) -> specs.AppDef:
    return specs.AppDef("wrong")

def no_component(x: int) -> int:
    return x
'''


@pytest.fixture
def components(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(COMPONENTS)
    return str(path)


def test_a_file_is_checked_function_by_function(components: str, tmp_path: Path) -> None:
    from torchx.specs.file_linter import LinterMessage, TorchxFunctionValidator, get_fn_docstring, validate

    class NoArgs(TorchxFunctionValidator):  # type: ignore[misc, valid-type]
        def validate(self, app_specs_func_def: Any) -> list[LinterMessage]:  # type: ignore[valid-type]
            return [self._gen_linter_message(app_specs_func_def.name, app_specs_func_def.lineno)]

    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")

    assert validate(components, "trainer") == []
    assert [message.line for message in validate(components, "wrong")] == [14, 14]
    assert "has no type" in validate(components, "wrong")[0].description
    assert "return type is not AppDef" in validate(components, "no_component")[0].description
    assert [message.description for message in validate(components, "gone")] == ["Function gone not found"]
    assert [(message.line, message.severity) for message in validate(str(broken), "f")] == [(1, "error")]
    assert validate(components, "trainer", [NoArgs()]) == [LinterMessage("TorchxFunctionValidator", "trainer", 5, 0)]
    assert get_fn_docstring(says) == ("Says it.", {"msg": "What to say.", "n": " "})


def says(msg: str = "x", n: int = 1) -> None:
    """Says it.

    Args:
        msg: What to say.
    """


def test_components_are_found_and_called_as_torchxs_functions_do(components: str) -> None:
    from torchx.specs.builders import component_args_from_str, materialize_appdef, parse_args
    from torchx.specs.finder import ComponentNotFoundException, get_builtin_source, get_component, get_components

    fn = get_component(f"{components}:trainer").fn
    words = ["--image", "i", "--env", "A=1,B=2", "--", "x", "y"]

    assert materialize_appdef(fn, words, cmpnt_defaults={"j": "3x4"}).roles[0].args == ["x", "y", "${app_id}"]
    assert vars(parse_args(fn, words, {"j": "3x4"})) == {
        "args": ["x", "y"],
        "image": "i",
        "j": "3x4",
        "env": {"A": "1", "B": "2"},
    }
    found = component_args_from_str(fn, words)
    assert (found.positional_args, found.var_args) == ({}, ["x", "y"])
    assert found.kwargs == {"image": "i", "j": "1x2", "env": {"A": "1", "B": "2"}}
    assert "dist.ddp" in get_components()
    assert "\ndef echo(" in get_builtin_source("utils.echo")
    with pytest.raises(ComponentNotFoundException):
        get_component("no.such")


def test_tests_of_components_run_them(components: str) -> None:
    sys.path.insert(0, str(Path(components).parent))  # another test's folder may be there too
    try:
        import mine
        from torchx.components.component_test_base import ComponentTestCase
        from torchx.components.utils import sh

        seen: list[Any] = []

        class MyTest(ComponentTestCase):  # type: ignore[misc, valid-type]
            def test_it(self) -> None:
                assert Path(self.test_dir).is_dir()
                seen.append(self.test_dir)
                self.validate(mine, "trainer")
                seen.append(self.run_component(lambda code: sh("-c", f"exit {code}"), {"code": "3"}))

            def test_a_wrong_one(self) -> None:
                self.validate(mine, "wrong")

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(MyTest).run(result)
    finally:
        del sys.path[0]
        sys.modules.pop("mine", None)

    assert result.testsRun == 2
    assert ["is not a component" in text for _, text in result.errors] == [True]
    assert not result.failures
    folder, status = seen
    assert not Path(folder).exists()
    assert status.exit_code == 2  # of `sh -c "-c 'exit 3'"`, which is no command


# -- the command line --------------------------------------------------------------------------------------------------


def python(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, check=False, timeout=300, **more
    )


def test_torchxs_command_line_runs_on_ours(tmp_path: Path) -> None:
    torchx = ("-m", "holdfast.compat", "-m", "torchx.cli.main")

    ran = python(*torchx, "run", "--scheduler", "local_cwd", "-cfg", f"log_dir={tmp_path}", "utils.echo", "--msg", "hi")
    assert ran.returncode == 0, ran.stderr
    handle = ran.stdout.strip()
    assert handle.startswith("local_cwd://")
    assert "echo/0 hi" in ran.stderr

    listed = python(*torchx, "builtins").stdout
    assert listed.startswith("Found ")
    assert " dist.ddp\n" in listed
    assert "State: SUCCEEDED" in python(*torchx, "status", handle).stdout
    assert python(*torchx, "log", "--streams", "stdout", f"{handle}/echo/0").stdout == "echo/0 hi\n"
    assert "log_dir" in python(*torchx, "configure", "--print", "--all", "-s", "local_cwd").stdout
    assert python(*torchx, "--version").stdout == "torchx-0.7.0\n"
    failed = python(*torchx, "run", "-s", "local_cwd", "--", "utils.sh", "exit 3")
    assert failed.returncode == 1
    assert python(*torchx, "cancel", "local_cwd://x/nothing").returncode == 0


def test_a_command_may_derive_from_torchxs(capfd: pytest.CaptureFixture[str]) -> None:
    from torchx.cli.cmd_run import CmdRun
    from torchx.cli.main import create_parser, get_default_sub_cmds, run_main

    class LoudRun(CmdRun):  # type: ignore[misc, valid-type]
        def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
            super().add_arguments(subparser)
            subparser.add_argument("--loud", action="store_true")

        def run(self, args: argparse.Namespace) -> None:
            if args.loud:
                args.component_name_and_args.append("!")
            super().run(args)

    run_main({**get_default_sub_cmds(), "run": LoudRun()}, ["run", "--loud", "--dryrun", "utils.sh", "echo", "hi"])

    assert "echo hi '!'" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        create_parser({"run": LoudRun()}).parse_args(["nothing"])


def test_commands_of_packages_take_the_place_of_torchxs_and_a_broken_one_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torchx.cli.main import get_sub_cmds

    from holdfast import plugins

    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[torchx.cli.cmds]\nlist = their_list:CmdList\nrun = their_list:Gone\n")
    (tmp_path / "their_list.py").write_text("class CmdList:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()

    found = get_sub_cmds()

    assert type(found["list"]).__module__ == "their_list"
    assert type(found["run"]).__name__ == "CmdRun"
    assert "the command 'run' of the group torchx.cli.cmds cannot be used: AttributeError" in caplog.text


def test_a_flag_may_come_from_the_settings_and_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torchx.cli.argparse_util import ArgOnceAction, torchxconfig_run

    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = mine\n")
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", "--scheduler", action=torchxconfig_run, required=True)
    parser.add_argument("--once", action=ArgOnceAction)

    assert parser.parse_args([]).scheduler == "mine"
    assert parser.parse_args(["-s", "other"]).scheduler == "other"
    assert parser.parse_args(["--once", "1"]).once == "1"
    with pytest.raises(SystemExit):
        parser.parse_args(["--once", "1", "--once", "2"])
    assert "--once is specified more than once" in capsys.readouterr().err


def test_logs_are_written_to_a_file_of_the_programs_own(capsys: pytest.CaptureFixture[str]) -> None:
    from torchx.cli.cmd_log import _prefix_line, find_role_replicas, get_logs, validate
    from torchx.runner import Runner
    from torchx.specs import AppDef, Role

    app = AppDef(
        "app",
        [Role(name, "", entrypoint="echo", args=[f"from {name}"], num_replicas=n) for name, n in (("a", 1), ("b", 2))],
    )
    with Runner("mine", {"memory": MemoryScheduler}) as runner:
        handle = runner.run(app, "memory")
        runner.wait(handle, 0.1)
        for identifier, regex, lines in [
            (handle, None, ["a/0 from a", "b/0 from b", "b/1 from b"]),
            (f"{handle}/b/1", "from", ["b/1 from b"]),
            (f"{handle}/a", "nothing", []),
        ]:
            for tail in (False, True):
                out = io.StringIO()
                get_logs(out, identifier, regex, should_tail=tail, runner=runner)
                assert sorted(out.getvalue().splitlines()) == lines
        with pytest.raises(SystemExit):
            get_logs(io.StringIO(), f"{handle}/c", None, runner=runner)
        assert "names no replica; there are a/0, b/0, b/1" in capsys.readouterr().err

    assert find_role_replicas(app, "b") == [("b", 0), ("b", 1)]
    with pytest.raises(SystemExit):
        validate("app-1")
    assert "is not of the form SCHEDULER://" in capsys.readouterr().err
    for line, said in {"a": "P a", "a\rb\n": "P a\rP b\n", "\ra": "\rP a", "a\nb\n": "P a\nP b\n"}.items():
        assert _prefix_line("P ", line) == said


def test_what_is_patched_through_the_alias_is_what_the_command_uses(capsys: pytest.CaptureFixture[str]) -> None:
    from torchx.cli.main import main

    with mock.patch("torchx.cli.cmd_run.get_runner", side_effect=ValueError("patched")) as patched:
        with pytest.raises(ValueError, match="patched"):
            main(["run", "utils.echo"])
        patched.assert_called_once()
    main(["run", "--dryrun", "utils.echo"])
    assert "=== APPLICATION ===" in capsys.readouterr().out


def test_a_file_that_imports_the_subtree_works_in_our_command_line_where_torchx_is_missing(tmp_path: Path) -> None:
    (tmp_path / "all_of_it.py").write_text(
        "import torchx\nimport torchx.specs as specs\n"
        "from torchx.components.dist import _TORCH_DEBUG_FLAGS, _args_join, _noquote, get_role_name\n"
        "from torchx.components.structured_arg import StructuredNameArgument\n"
        "from torchx.runner.config import get_config\nfrom torchx.schedulers.ids import make_unique\n"
        "from torchx.specs.file_linter import validate\nfrom torchx.tracker import AppRun\n"
        "from torchx.util.types import none_throws\nfrom torchx.version import TORCHX_IMAGE\n"
        "from torchx.workspace.dir_workspace import DirWorkspaceMixin\n"
        "def it(msg: str, image: str = torchx.IMAGE) -> specs.AppDef:\n"
        "    assert image == TORCHX_IMAGE == 'ghcr.io/pytorch/torchx:0.7.0'\n"
        "    return specs.AppDef('it', [specs.Role('it', image, entrypoint='echo', args=[msg])])\n"
    )

    ran = python("-m", "holdfast", "run", "all_of_it.py:it", "--msg", "fine")

    assert ran.returncode == 0, ran.stderr
    assert "it/0 fine" in ran.stderr


# -- helpers -----------------------------------------------------------------------------------------------------------


def test_values_are_read_from_text_as_torchxs_helpers_do() -> None:
    from torchx.util.types import (
        decode,
        decode_from_string,
        decode_optional,
        get_argparse_param_type,
        is_primitive,
        none_throws,
        to_dict,
        to_list,
    )

    assert to_list(" a, b ") == ["a", "b"]
    assert (to_list(""), to_dict("")) == ([], {})
    assert to_dict("FOO=v1;v2,BAR=v3") == {"FOO": "v1;v2", "BAR": "v3"}
    assert to_dict("FOO=''") == {"FOO": ""}
    with pytest.raises(ValueError, match="not of the form key=value"):
        to_dict("nothing")
    assert decode("1,2", List[int]) == [1, 2]  # noqa: UP006
    assert decode("a=1,b=2", Dict[str, int]) == {"a": 1, "b": 2}  # noqa: UP006
    assert (decode("true", bool), decode("False", bool), decode(None, bool)) == (True, False, None)
    assert (decode("3", int), decode_from_string("", list[str])) == ("3", None)
    assert decode_optional(Optional[int]) is int  # noqa: UP045
    assert decode_optional(int | None) is int
    assert decode_optional(int | str) == int | str
    (parameter,) = inspect.signature(lambda x: x).parameters.values()
    assert get_argparse_param_type(parameter.replace(annotation=int)) is int
    assert get_argparse_param_type(parameter.replace(annotation=dict)) is str
    assert is_primitive(float)
    assert none_throws(0) == 0
    with pytest.raises(AssertionError, match="Unexpected `None`"):
        none_throws(None)


def test_entry_points_and_modules_are_loaded_by_name() -> None:
    from torchx.util.entrypoints import load, load_group
    from torchx.util.modules import load_module

    from holdfast.schedulers.local import create_scheduler

    assert load("holdfast.schedulers", "local") is create_scheduler
    assert load("no.group", "x", default=1) == 1
    with pytest.raises(KeyError):
        load("no.group", "x")
    found = load_group("holdfast.schedulers")
    assert found is not None
    assert found["local"]("me").session_name == "me"
    assert (load_group("no.group"), load_group("no.group", {"a": 1})) == (None, {"a": 1})
    assert load_module("holdfast.schedulers.local:create_scheduler") is create_scheduler
    assert load_module("holdfast.schedulers.local") is sys.modules["holdfast.schedulers.local"]
    assert (load_module("no_such_module"), load_module("json:no_such")) == (None, None)


def test_small_helpers(tmp_path: Path) -> None:
    from torchx.util.datetime import get_past_epoch_time
    from torchx.util.io import read_conf_file
    from torchx.util.shlex import join
    from torchx.util.strings import normalize_str

    (tmp_path / "f").write_text("text")

    assert get_past_epoch_time(1) - get_past_epoch_time(3) in (2 * 86400, 2 * 86400 - 1, 2 * 86400 + 1)
    assert read_conf_file(str(tmp_path / "f")) == "text"
    with pytest.raises(FileNotFoundError):
        read_conf_file(str(tmp_path / "gone"))
    assert join(["a b", "c"]) == "'a b' c"
    assert normalize_str("-My Job_1/x") == "myjob1x"


def test_a_notebooks_cells_are_a_workspace_that_can_be_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    import torchx.notebook
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Role

    torchx.notebook.workspacefile("pkg/hello.py", "print('from a cell')\n")

    assert "Added pkg/hello.py to workspace file://" in capsys.readouterr().out
    app = AppDef("app", [Role("r", "", entrypoint=sys.executable, args=["pkg/hello.py"])])
    with get_runner() as runner:
        handle = runner.run(app, "local_cwd", workspace=torchx.notebook.get_workspace())
        runner.wait(handle)
        assert list(runner.log_lines(handle, "r")) == ["from a cell\n"]
