"""The secret: found where it should be, made so that exactly one wins, and never readable by others."""

import stat
import threading

import pytest

from holdfast.errors import UsageError
from holdfast.wire.address import Endpoint
from holdfast.wire.secret import (
    SECRET_BYTES_MAX,
    Secret,
    find_secret,
    open_door_warning,
    state_folder,
    user_secret_path,
)

LOOPBACK, REMOTE = Endpoint("localhost", 1), Endpoint("node-1", 1)


@pytest.fixture
def home(tmp_path):
    return {"HOLDFAST_HOME": str(tmp_path / "home")}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.secret"
    path.write_bytes(b"from the file\n")
    path.chmod(0o600)
    return path


def test_the_file_given_comes_first_then_the_environment(file, tmp_path, home):
    other = tmp_path / "other"
    other.write_bytes(b"other")
    other.chmod(0o600)
    environ = {**home, "HOLDFAST_SECRET_FILE": str(other), "HOLDFAST_SECRET": "text"}

    assert find_secret(REMOTE, file, environ).key == b"from the file"
    assert find_secret(REMOTE, None, environ).key == b"other"
    assert find_secret(REMOTE, None, {**home, "HOLDFAST_SECRET": "text"}) == Secret(b"text", "$HOLDFAST_SECRET")


def test_a_remote_endpoint_has_no_secret_of_its_own(home):
    assert find_secret(REMOTE, None, home) == Secret(b"", "none")
    assert not user_secret_path(home).exists()
    assert str(REMOTE) in open_door_warning(REMOTE)


def test_a_loopback_endpoint_gets_a_secret_that_only_this_user_can_read(home):
    first = find_secret(LOOPBACK, None, home)
    path = user_secret_path(home)

    assert len(first.key) == 64
    assert find_secret(LOOPBACK, None, home) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]  # no draft is left


def test_whoever_creates_it_at_the_same_time_gets_the_same_secret(home):
    together = threading.Barrier(16)
    keys = []

    def find():
        together.wait()
        keys.append(find_secret(LOOPBACK, None, home).key)

    threads = [threading.Thread(target=find) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(keys) == 16
    assert len(set(keys)) == 1
    assert list(state_folder(home).iterdir()) == [user_secret_path(home)]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(file, mode, home):
    file.chmod(mode)

    with pytest.raises(UsageError, match=f"can be read by other users: run chmod 600 {file}"):
        find_secret(REMOTE, file, home)


@pytest.mark.parametrize("content", [b"", b" \n\t"])
def test_an_empty_file_is_refused(file, content, home):
    file.write_bytes(content)

    with pytest.raises(UsageError, match="is empty"):
        find_secret(REMOTE, file, home)


def test_a_file_that_is_too_long_is_refused(file, home):
    file.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))

    with pytest.raises(UsageError, match=f"over {SECRET_BYTES_MAX} bytes"):
        find_secret(REMOTE, file, home)


def test_a_file_that_is_not_there_is_named(tmp_path, home):
    with pytest.raises(UsageError, match=r"cannot read the secret file .*missing: No such file"):
        find_secret(REMOTE, tmp_path / "missing", home)


def test_a_home_that_cannot_be_written_says_what_to_set(tmp_path):
    blocker = tmp_path / "a-file"
    blocker.touch()

    with pytest.raises(UsageError, match="set HOLDFAST_HOME to a folder that you can write"):
        find_secret(LOOPBACK, None, {"HOLDFAST_HOME": str(blocker / "home")})


def test_the_state_folder_follows_the_environment(tmp_path):
    assert state_folder({"HOLDFAST_HOME": "/a"}) == state_folder({"HOLDFAST_HOME": "/a", "XDG_STATE_HOME": "/b"})
    assert str(state_folder({"XDG_STATE_HOME": "/b"})) == "/b/holdfast"
    assert state_folder({}).parts[-3:] == (".local", "state", "holdfast")


def test_a_secret_does_not_show_itself():
    assert "hush" not in repr(Secret(b"hush", "file x"))
