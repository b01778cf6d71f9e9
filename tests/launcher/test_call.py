"""`holdfast.launch`: functions and scripts from Python, with their results and errors."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import HoldfastError, SignalError, UsageError, WorkerFailedError
from holdfast.failures import Kind
from holdfast.launcher.options import OPTIONS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


def scaled_rank(scale: int) -> int:
    return int(os.environ["RANK"]) * scale


def fail_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the data is damaged")


def test_a_functions_results_come_back_by_rank() -> None:
    results = holdfast.launch(scaled_rank, 10, workers=2)

    assert results == {0: 0, 1: 10}


def test_a_script_gets_its_arguments_and_options(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(__file__).with_name(os.environ['RANK']).write_text(' '.join(sys.argv[1:]))\n"
    )

    results = holdfast.launch(script, "--lr", 0.1, workers=2, log_dir=tmp_path / "logs")

    assert results == {0: None, 1: None}
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["--lr 0.1", "--lr 0.1"]
    assert list((tmp_path / "logs").iterdir())


def test_a_workers_error_comes_back_with_its_rank_and_remote_traceback() -> None:
    with pytest.raises(WorkerFailedError) as caught:
        holdfast.launch(fail_on_rank_1, workers=2)

    error = caught.value
    cause = error.failures[0]
    assert (cause.kind, cause.rank, error.exit_code) == (Kind.EXCEPTION, 1, 1)
    assert str(error).startswith("rank 1 (")
    assert "ValueError: the data is damaged" in str(error).splitlines()[0]
    assert "in fail_on_rank_1" in str(error)
    assert pickle.loads(pickle.dumps(error)).failures == error.failures


def test_a_worker_that_is_killed_is_told_by_its_signal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")

    with pytest.raises(WorkerFailedError, match="SIGKILL") as caught:
        holdfast.launch(script)

    assert caught.value.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"wrokers": 2}, "launch takes no option 'wrokers'; see docs/OPTIONS.md"),
        ({"hangs": "auto"}, "launch takes no option 'hangs'; did you mean hang?"),
        ({"rdzv_id": "a"}, "launch takes no option 'rdzv_id': it is called run_id here"),
        ({"workers": 0}, "workers is 0 but must be at least 1"),
        ({"nnodes": "2:1"}, "--nnodes '2:1' must have 1 <= MIN <= MAX, as in 4 or 2:4"),
        ({"nnodes": 2}, "nnodes is 2, so say where the nodes meet, as in endpoint='host-a:29400'"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        holdfast.launch(scaled_rank, 1, **options)

    assert str(caught.value) == sentence


def test_times_are_seconds_text_or_timedeltas() -> None:
    from holdfast.launcher.call import _flags

    for value in (90, 90.0, "90", "90s", timedelta(seconds=90)):
        text = _flags({"exit_barrier_timeout": value})["exit_barrier_timeout"]
        assert holdfast.launcher.config._time("", text) == 90.0


def test_every_flag_is_an_option_or_has_a_reason_not_to_be_one() -> None:
    from holdfast.launcher.call import NOT_TAKEN

    assert set(NOT_TAKEN) <= set(OPTIONS)


WAITING = """
import os, signal, sys, threading
import holdfast

def wait(folder):
    open(os.path.join(folder, "ready"), "w").close()
    threading.Event().wait()

try:
    holdfast.launch(wait, sys.argv[1])
except BaseException as error:
    print(type(error).__name__, getattr(error, "sigval", None) == signal.SIGTERM, flush=True)
"""


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "KeyboardInterrupt False"), (signal.SIGTERM, "SignalError True")]
)
def test_a_signal_ends_the_workers_and_raises(tmp_path: Path, number: signal.Signals, said: str) -> None:
    os.mkfifo(tmp_path / "ready")
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        (tmp_path / "ready").open().close()  # opens when the worker does
        process.send_signal(number)
        out, _ = process.communicate()

    assert out.strip() == said


def test_a_signals_error_is_of_our_tree_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(SignalError("process 7 received SIGTERM", signal.SIGTERM)))

    assert isinstance(error, HoldfastError)
    assert (str(error), error.sigval) == ("process 7 received SIGTERM", signal.SIGTERM)
