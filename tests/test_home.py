"""A user without a home folder: every command has a place, or says in one sentence what to set."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.home import can_write, expand, home_folder, make_folders, make_private, state_folder
from holdfast.wire.secret import find_secret, user_secret_path

PATIENCE_S = 240
SCRIPT = """
import os
from holdfast.store import from_environ
with from_environ() as store:
    store.set(os.environ["RANK"], "here")
    assert store.get(str(1 - int(os.environ["RANK"]))) == b"here"
print("rank", os.environ["RANK"], "met the other")
"""

# -- where things are kept -----------------------------------------------------------------------------------------


def test_the_environment_says_where(tmp_path: Path) -> None:
    state = tmp_path / "xdg"

    assert state_folder({"HOLDFAST_HOME": "/a", "XDG_STATE_HOME": str(state)}) == Path("/a")
    assert state_folder({"XDG_STATE_HOME": str(state)}) == state / "holdfast"
    assert state_folder({"HOME": str(tmp_path)}) == tmp_path / ".local/state/holdfast"
    assert state_folder({"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/holdfast"


def test_a_home_that_cannot_be_written_is_replaced_by_a_private_folder(tmp_path: Path) -> None:
    blocker = tmp_path / "a-file"
    blocker.touch()
    tmp = tmp_path / "tmp"
    tmp.mkdir()

    folder = state_folder({"HOME": str(blocker), "TMPDIR": str(tmp)})

    assert folder == tmp / f"holdfast-state-{os.geteuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert state_folder({"HOME": str(blocker), "TMPDIR": str(tmp)}) == folder


def test_a_folder_that_was_named_is_never_replaced(tmp_path: Path) -> None:
    blocker = tmp_path / "a-file"
    blocker.touch()

    assert state_folder({"HOLDFAST_HOME": str(blocker / "x"), "TMPDIR": str(tmp_path)}) == blocker / "x"


def test_a_folder_that_another_has_put_there_first_is_not_used(tmp_path: Path) -> None:
    mine = make_private(tmp_path / "mine")
    assert make_private(mine) == mine
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "file").touch(mode=0o700)

    for name in ("open", "link", "file"):
        with pytest.raises(UsageError, match="is not a private folder of this user: remove it, or set HOLDFAST_HOME"):
            make_private(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    theirs = make_private(tmp_path / "theirs")
    os.chown(theirs, 12345, 12345)

    with pytest.raises(UsageError, match="is not a private folder of this user"):
        make_private(theirs)


def test_every_folder_that_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    make_folders(tmp_path / "a" / "b")
    make_folders(tmp_path / "a" / "b")

    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "x")


def test_no_place_at_all_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "a-file"
    blocker.touch()

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(UsageError, match="set HOLDFAST_HOME to a folder that you can write"):
        state_folder({"HOME": str(blocker)})


def test_a_secret_in_a_home_that_became_read_only_is_still_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    first = find_secret(None, environ)
    monkeypatch.setattr("holdfast.home.can_write", lambda _: False)

    assert find_secret(None, environ) == first
    assert state_folder(environ) != user_secret_path(environ).parent


def test_a_tilde_without_a_home_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expand("~/x") == Path("/somewhere/x")
    assert expand("~no-such-user-here/x") == Path("~no-such-user-here/x")
    assert home_folder({"HOME": "/b"}) == Path("/b")


def test_what_can_be_written_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()

    assert can_write(tmp_path / "x" / "y")
    assert not can_write(tmp_path / "a-file" / "y")


# -- real users -----------------------------------------------------------------------------------------------------


class OtherUser:
    """A user who is not in the password file, may write nothing of ours, but may read, so that Python can start."""

    def __init__(self, folder: Path) -> None:
        self.uid = 50_000 + os.getpid() % 10_000
        self.folder = folder
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        who = ["--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups"]
        self.prefix = ["setpriv", *who, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]

    def popen(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "holdfast", *words],
            env=environ,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **environ: str) -> tuple[int, str, str]:
        with self.popen(*words, **environ) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return process.returncode, out, err


@pytest.fixture
def other_user() -> Iterator[OtherUser]:
    """A user without a home; needs root, and the right to hand on that of reading."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-user-"))  # pytest's own are not open to other users
    folder.chmod(0o755)
    try:
        yield from made_user(folder)
    finally:
        shutil.rmtree(folder)


def made_user(folder: Path) -> Iterator[OtherUser]:
    made = OtherUser(folder)
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    if subprocess.run([*made.prefix, sys.executable, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip("root cannot become another user who may read here")
    yield made
    for name in (f"holdfast-{made.uid}", f"holdfast-state-{made.uid}"):
        shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def homes(other_user: OtherUser) -> dict[str, dict[str, str]]:
    """Return environments that have no home to write to, by what is wrong with it."""
    locked = other_user.folder / "locked"
    locked.mkdir(mode=0o555)
    theirs = other_user.folder / "theirs"
    theirs.mkdir(mode=0o700)
    usual = {"PATH": os.environ["PATH"], "TMPDIR": str(other_user.tmp)}
    return {
        "unset": usual,
        "root": {**usual, "HOME": "/"},
        "missing": {**usual, "HOME": "/nonexistent"},
        "locked": {**usual, "HOME": str(locked)},
        "another's": {**usual, "HOME": str(theirs)},
        "no environment": {},
    }


WRONG = ("unset", "root", "missing", "locked", "another's", "no environment")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_launch_needs_no_home(other_user: OtherUser, wrong: str) -> None:
    code, out, err = other_user.run(
        "launch", "--nproc-per-node", "2", str(other_user.script), **homes(other_user)[wrong]
    )

    assert code == 0, err
    assert sorted(out.splitlines()) == ["rank 0 met the other", "rank 1 met the other"]
    assert "will not find" not in err  # the journal is noted all the same


@pytest.mark.parametrize("wrong", ["unset", "locked", "no environment"])
def test_local_jobs_need_no_home(other_user: OtherUser, wrong: str) -> None:
    environ = homes(other_user)[wrong]
    words = ("dist.ddp", "-j", "2x1", "--script", str(other_user.script))
    code, out, err = other_user.run("run", "--workspace", "", *words, **environ)
    assert code == 0, out + err
    assert "met the other" in out + err

    code, out, err = other_user.run("list", **environ)
    assert (code, "SUCCEEDED" in out) == (0, True), out + err
    code, out, err = other_user.run("events", **environ)
    assert code == 0, err
    assert "finished" in out


@pytest.mark.parametrize("wrong", ["root", "no environment"])
def test_a_coordinator_needs_no_home(other_user: OtherUser, wrong: str) -> None:
    environ = homes(other_user)[wrong]
    with other_user.popen("serve", "127.0.0.1:0", **environ) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().split()[-1]
        assert other_user.run("rounds", endpoint, **environ) == (0, "no runs\n", "")
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, "Traceback" in err) == (0, False)


@pytest.mark.parametrize(
    "words", ["list", "events", "builtins", "resources", "plugins", "runopts", "configure --print"]
)
def test_other_commands_need_no_home(other_user: OtherUser, words: str) -> None:
    for wrong, environ in homes(other_user).items():
        code, _, err = other_user.run(*words.split(), **environ)
        assert code in (0, 2), (wrong, err)
        assert err.count("\n") <= 1, (wrong, err)
