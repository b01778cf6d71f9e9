"""What has another shape with us than with TorchElastic, used as its programs use it."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.compat.elastic import argparse_util, control_plane, debug_info, launch, rendezvous_utils, utils
from holdfast.compat.elastic import run as torchrun
from holdfast.compat.elastic.event_handlers import _log_handlers
from holdfast.compat.elastic.logging import get_logger
from holdfast.errors import UsageError
from holdfast.events import Event, EventSource, record
from holdfast.failures import ChildFailedError
from tests.compat.conftest import Run


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_launcher_adds_flags_of_its_own_to_torchruns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(len(sys.argv) != 3)\n")
    parser = torchrun.get_args_parser()
    parser.add_argument("--mine", default="x")

    args = parser.parse_args(["--standalone", "--nproc-per-node=2", str(tmp_path / "train.py"), "--a", "--mine"])

    assert args.mine == "x"
    assert args.training_script_args == ["--a", "--mine"]
    torchrun.run(args)


def test_workers_that_fail_are_told_as_an_error(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('why')\n")

    with pytest.raises(ChildFailedError, match="ValueError: why"):
        torchrun.run(torchrun.parse_args(["--standalone", str(tmp_path / "fails.py")]))


@pytest.mark.parametrize("main", [torchrun.main, launch.main])
@pytest.mark.filterwarnings("ignore:torch.distributed.launch is deprecated")
def test_a_program_that_calls_main_goes_on_or_gets_an_error(main: Any, tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("import sys; assert sys.argv[1:] in ([], ['--local-rank=0'])\n")
    (tmp_path / "fails.py").write_text("raise ValueError('why')\n")

    assert main(["--standalone", str(tmp_path / "works.py")]) is None
    with pytest.raises(ChildFailedError, match="ValueError: why"):
        main(["--standalone", "--nproc_per=2", str(tmp_path / "fails.py")])
    with pytest.raises(ValueError, match="--nnodes 'many'"):
        main(["--nnodes", "many", str(tmp_path / "works.py")])


def test_a_prefix_that_torchrun_takes_is_taken_beside_our_flags() -> None:
    parser = torchrun.get_args_parser()
    parser.add_argument("--mine")
    args = parser.parse_args(["--log-", "x", "--re=3", "--mine", "1", "s.py", "--", "--a"])

    assert (args.log_dir, args.redirects, args.mine) == ("x", "3", "1")
    assert (args.training_script, args.training_script_args) == ("s.py", ["--a"])
    with pytest.raises(SystemExit):
        parser.parse_args(["--rdzv", "x", "s.py"])


def test_where_nodes_meet_is_read_off_the_arguments(tmp_path: Path) -> None:
    script = str(tmp_path / "x.py")
    two = torchrun.parse_args(["--nnodes=2", "--rdzv_backend=static", "--master_addr=host", "--master_port=7", script])
    named = torchrun.parse_args(["--nnodes=1:2", "--rdzv-endpoint=there:9", script])

    assert torchrun.get_rdzv_endpoint(two) == "host:7"
    assert torchrun.get_rdzv_endpoint(named) == "there:9"
    assert torchrun.get_use_env(two)
    assert torchrun.determine_local_world_size("3") == 3


def test_the_older_launcher_needs_use_env_for_programs() -> None:
    with pytest.raises(UsageError, match="must also set the '--use-env' flag"):
        launch.launch(launch.parse_args(["--no-python", "ls"]))
    with pytest.warns(FutureWarning, match="deprecated"), pytest.raises(UsageError):
        launch.main(["--no-python", "ls"])


def test_a_script_can_be_run_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x"])
    (tmp_path / "x.py").write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(__name__)\n")

    torchrun.run_script_path(str(tmp_path / "x.py"), str(tmp_path / "out"))

    assert (tmp_path / "out").read_text() == "__main__"


def test_arguments_come_from_variables_unless_they_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_SIZE", "3")
    monkeypatch.setenv("PET_FLAG", "1")
    parser = ArgumentParser()
    parser.add_argument("--size", action=argparse_util.env, type=int, default=1, required=True)
    parser.add_argument("--flag", action=argparse_util.check_env)
    parser.add_argument("--other", action=argparse_util.check_env)

    assert vars(parser.parse_args([])) == {"size": 3, "flag": True, "other": False}
    assert vars(parser.parse_args(["--size", "5", "--other"])) == {"size": 5, "flag": True, "other": True}


def test_a_main_function_leaves_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    @control_plane.worker_main()
    def main(value: int) -> int:
        return 1 // value

    assert main(1) == 1
    with pytest.raises(ZeroDivisionError):
        main(0)
    assert "ZeroDivisionError" in json.loads((tmp_path / "error.json").read_text())["message"]["message"]


def test_a_main_function_is_served_where_a_socket_is_named(run: Run) -> None:
    pytest.importorskip("torch")
    done = run(
        "-W",
        "ignore",
        "-c",
        "import os\n"
        "from holdfast.compat.elastic.control_plane import worker_main\n"
        "with worker_main():\n"
        "    print(os.path.exists('socket'))\n",
        TORCH_WORKER_SERVER_SOCKET="socket",
    )

    assert done.stdout == "True\n"


def test_a_handler_put_into_the_table_gets_events() -> None:
    lines: list[str] = []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    _log_handlers["mine"] = Mine()
    record(Event("hello", EventSource.AGENT), "mine")

    assert json.loads(lines[0])["name"] == "hello"
    assert isinstance(_log_handlers["null"], logging.NullHandler)


def test_loggers_have_the_level_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    assert get_logger("some.name").level == logging.ERROR
    monkeypatch.delenv("LOGLEVEL")
    assert get_logger().name == __name__
    assert get_logger().level == logging.WARNING


def test_expired_timers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    debug_info.log_debug_info_for_expired_timers("run", {})
    debug_info.log_debug_info_for_expired_timers("run", {3: ["scope"]})

    assert [record.getMessage() for record in caplog.records] == ["Timers expired for run:[run] [{3: ['scope']}]."]


def test_a_periodic_timer_calls_until_it_is_cancelled() -> None:
    called = threading.Semaphore(0)
    timer: Any = rendezvous_utils._PeriodicTimer(timedelta(milliseconds=1), lambda: called.release())
    timer.set_name("beat")
    timer.start()

    for _ in range(3):
        assert called.acquire(timeout=240)
    assert timer.name == "beat"
    for again in (timer.start, lambda: timer.set_name("x")):
        with pytest.raises(RuntimeError, match="already started"):
            again()
    timer.cancel()
    timer.cancel()


def test_small_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME", "value")

    assert utils.get_env_variable_or_raise("SOME") == "value"
    with utils.get_socket_with_port() as sock:
        assert sock.getsockname()[1] > 0
    assert utils.get_free_port() > 0
    assert utils.read_proc_state(os.getpid()) in ("R", "S")
    assert utils.read_proc_state(2**22 + 1) is None
    assert utils.is_uninterruptible_state("D")
    assert not utils.is_uninterruptible_state(None)
    assert rendezvous_utils._matches_machine_hostname("localhost")
    rendezvous_utils._delay((0, 0.001))
    rendezvous_utils._delay(0)
