"""Places that may not be read or written, that are full, or that are gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.checksums import checksum
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from tests.mistakes.conftest import PATIENCE_S, Invoke, Said, answered, shell, works

AsAnybody = Callable[..., Said]
#: Makes a file system of its own for one command, with room for next to nothing.
SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k,nr_inodes=64 none "$0" && exec "$@"']


def in_small_folder(*words: str) -> Said:
    """Run a command while the folder `small` is on a disk that is soon full."""
    Path("small").mkdir()
    if not works(*SMALL, "small", "true"):
        pytest.skip("no file system can be mounted here")
    command = [*SMALL, "small", sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder in which nothing may be written."""
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    return folder


def test_a_script_that_may_not_be_read(as_anybody: AsAnybody) -> None:
    Path("ok.py").chmod(0)

    answered(as_anybody("launch", "ok.py"), "the script 'ok.py' cannot be read by this user: chmod u+r may help")


def test_a_program_that_may_not_be_run(as_anybody: AsAnybody) -> None:
    answered(as_anybody("launch", "--no-python", "./ok.py"), "Permission denied: ./ok.py; chmod +x makes it a program")


def test_a_log_folder_that_may_not_be_made(as_anybody: AsAnybody, locked: Path) -> None:
    said = as_anybody("launch", "--log-dir", str(locked / "logs"), "ok.py")

    answered(said, f"cannot make a log folder in {locked}/logs: Permission denied; name another with --log-dir")


def test_a_log_folder_for_a_job_that_cannot_be_made(invoke: Invoke) -> None:
    said = invoke("run", "-cfg", "log_dir=ok.py", "utils.echo")

    assert said.code == 1
    assert "cannot make the log folder" in said.err
    assert "name another with -cfg log_dir=FOLDER" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["launch", "--nnodes", "2", "--rdzv-endpoint", "localhost", "ok.py"],
            "or set HOLDFAST_HOME to such a folder, or $HOLDFAST_SECRET",
        ),
        (["run", "utils.echo"], "Permission denied; set HOLDFAST_HOME to a folder that you can write"),
        (["serve", "localhost:0"], "or set HOLDFAST_HOME to such a folder, or $HOLDFAST_SECRET"),
    ],
)
def test_a_home_that_may_not_be_written(
    words: list[str], sentence: str, as_anybody: AsAnybody, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(locked / "state"))

    answered(as_anybody(*words), sentence)


def test_a_settings_file_that_may_not_be_written(as_anybody: AsAnybody, locked: Path) -> None:
    said = as_anybody("configure", cwd=locked)

    answered(said, "Permission denied: .holdfast.toml; choose a place where you may do that", 1)


def test_a_port_that_needs_more_rights(as_anybody: AsAnybody) -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80:
        pytest.skip("every port is open to all users here")

    answered(as_anybody("serve", "localhost:80"), "Permission denied; free the port, or give another one")


def test_a_folder_that_is_gone(invoke: Invoke) -> None:
    for words in ("launch ../ok.py", "run utils.echo"):
        said = shell(f"mkdir gone && cd gone && rmdir ../gone && holdfast {words}")

        assert said.err == "holdfast: the current folder is gone: change to one that exists\n"
        assert said.code in (1, 2)


def test_logs_on_a_disk_that_fills_up() -> None:
    Path("chatty.py").write_text("for line in range(100000): print('line', line)")
    said = in_small_folder("launch", "-q", "--log-dir", "small", "-r", "3", "chatty.py")

    assert said.code == 1
    assert said.err.splitlines()[-1].startswith("holdfast: the disk of ")
    assert "is full; make room there, or name another place with --log-dir" in said.err


FILL = """
import os, sys
number = 0
try:
    while True:
        open(f"small/fill{number}", "x").close()
        number += 1
except OSError:
    pass
"""


def test_a_disk_without_inodes_does_not_hold_the_workers_up() -> None:
    """The file of the filtered lines is made with the first of them, by the thread that reads all the pipes."""
    Path("fill.py").write_text(f"{FILL}\nfor line in range(20000): print('loss', line)\n")
    said = in_small_folder(
        "launch",
        "--log-dir",
        "small",
        "--tee",
        "3",
        "--duplicate-stdout-filters",
        "loss",
        "--preload",
        "none",
        "fill.py",
    )

    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == "[default0]:loss 19999"
    assert len(said.out.splitlines()) == 20000
    warnings = [line for line in said.err.splitlines() if "is incomplete from here on" in line]
    assert len(warnings) == 2, said.err
    assert "filtered_stdout.log" in warnings[0], "which had no inode"
    assert "stdout.log" in warnings[1], "which had no more room"


def test_a_restart_on_a_disk_without_inodes_goes_on_without_log_files() -> None:
    Path("fill.py").write_text(
        f"import os\nprint('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'])\n{FILL}\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise SystemExit(3)\n"
    )
    said = in_small_folder(
        "launch", "--log-dir", "small", "--tee", "3", "--max-restarts", "1", "--preload", "none", "fill.py"
    )

    assert said.code == 0, said.err
    assert said.out.splitlines() == ["[default0]:attempt 0", "[default0]:attempt 1"]
    assert "this attempt has no log files: cannot make a folder in " in said.err
    assert "Traceback" not in said.err


def test_a_home_on_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "small/state")
    Path("fill.py").write_text(
        "import os, sys\n"
        "with open('small/fill', 'wb', 0) as file:\n"
        "    try:\n"
        "        while True: file.write(bytes(4096))\n"
        "    except OSError: pass\n"
    )
    Path("small").mkdir()
    if not works(*SMALL, "small", "true"):
        pytest.skip("no file system can be mounted here")
    fill_first = f'"{sys.executable}" fill.py; exec "{sys.executable}" -m holdfast run utils.echo'
    done = subprocess.run(
        [*SMALL, "small", "sh", "-c", fill_first], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    answered(Said(done.returncode, done.stdout, done.stderr), "No space left on device; set HOLDFAST_HOME to a folder")


@pytest.mark.parametrize("words", ["builtins", "--help"])
def test_output_to_a_disk_that_is_full(words: str) -> None:
    said = shell(f"holdfast {words} > /dev/full")

    answered(said, "No space left on device; make room there", 1)


def test_a_launch_whose_own_words_find_no_room_goes_on() -> None:
    said = shell("holdfast launch ok.py 2> /dev/full")

    assert (said.code, said.out) == (0, "ok\n")


def test_a_checkpoint_that_is_not_as_it_was_written(invoke: Invoke) -> None:
    data = memoryview(bytes(1500))
    StorageTier("saved", keep=None).save(Key(1, "run.0", 1, 0), data, checksum(data))
    path = next(path for path in Path("saved").rglob("*.state"))
    with path.open("r+b") as file:
        file.seek(700)
        file.write(b"!")

    said = invoke("checkpoints", "saved", "--verify")

    assert said.code == 1
    assert "torn" in said.out
    assert "Traceback" not in said.out + said.err


def test_a_folder_that_holds_no_checkpoints(invoke: Invoke) -> None:
    said = invoke("checkpoints", "folder")

    assert (said.code, said.out) == (0, "no checkpoints in folder\n")


def test_a_program_that_is_not_in_the_path(invoke: Invoke) -> None:
    answered(invoke("launch", "--no-python", "no-such-program"), "cannot start 'no-such-program': No such file")
