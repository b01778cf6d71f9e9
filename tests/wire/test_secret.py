"""The secret: found where it should be, made so that exactly one wins, and never readable by others."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from holdfast.errors import UsageError
from holdfast.wire.address import Endpoint
from holdfast.wire.secret import (
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    Secret,
    derive_key,
    find_secret,
    make_key,
    open_door_warning,
    read_secret,
    user_secret_path,
    write_secret,
)

LOOPBACK, REMOTE = Endpoint("localhost", 1), Endpoint("node-1", 1)
TEXT = "a text that is long enough"


@pytest.fixture
def home(tmp_path):
    return {"HOLDFAST_HOME": str(tmp_path / "home")}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.secret"
    path.write_bytes(b"what the file says\n")
    path.chmod(0o600)
    return path


def test_the_file_given_comes_first_then_the_environment(file, tmp_path, home):
    other = tmp_path / "other"
    other.write_bytes(b"what the other says")
    other.chmod(0o600)
    environ = {**home, "HOLDFAST_SECRET_FILE": str(other), "HOLDFAST_SECRET": TEXT, "HOLDFAST_INSECURE": "1"}

    assert find_secret(file, environ).key == b"what the file says"
    assert find_secret(None, environ).key == b"what the other says"
    assert find_secret(None, {**environ, "HOLDFAST_SECRET_FILE": ""}) == Secret(TEXT.encode(), "$HOLDFAST_SECRET")
    assert find_secret(None, {**home, "HOLDFAST_INSECURE": "1"}) == Secret(b"", "none")
    assert find_secret(None, {**home, "HOLDFAST_INSECURE": "0"}).key
    assert find_secret(None, environ, insecure=True) == Secret(b"", "none")


def test_insecure_and_a_file_exclude_each_other(file, home):
    with pytest.raises(UsageError, match="--insecure and --secret-file cannot be used together"):
        find_secret(file, home, insecure=True)


def test_what_stands_around_a_secret_does_not_count(file, home):
    assert find_secret(None, {**home, "HOLDFAST_SECRET": "what the file says\n"}).key == find_secret(file, home).key


def test_a_run_without_a_secret_says_what_it_is_open_to():
    assert f"anyone who can reach {REMOTE} can join" in open_door_warning(REMOTE)


def test_a_user_has_a_secret_that_only_this_user_can_read(home):
    first = find_secret(None, home)
    path = user_secret_path(home)

    assert len(first.key) == 64
    assert find_secret(None, home) == first
    assert (first.path, first.own) == (str(path), True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]  # no draft is left


def test_a_node_alone_has_a_secret_in_memory(home):
    first, second = find_secret(None, home, alone=True), find_secret(None, home, alone=True)

    assert len(first.key) == 64
    assert first.key != second.key
    assert not user_secret_path(home).exists()
    assert find_secret(None, {**home, "HOLDFAST_SECRET": TEXT}, alone=True).key == TEXT.encode()


def test_processes_that_create_it_at_the_same_time_gets_the_same_secret(home):
    together = threading.Barrier(16)
    keys = []

    def find():
        together.wait()
        keys.append(find_secret(None, home).key)

    threads = [threading.Thread(target=find) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(keys) == 16
    assert len(set(keys)) == 1
    assert list(user_secret_path(home).parent.iterdir()) == [user_secret_path(home)]


def test_a_file_that_another_process_has_just_begun_is_waited_for(home):
    path = user_secret_path(home)
    path.parent.mkdir()
    path.touch(mode=0o600)
    writer = threading.Timer(0.1, path.write_bytes, [TEXT.encode()])
    writer.start()

    assert find_secret(None, home).key == TEXT.encode()
    writer.join()


def test_a_file_system_without_links_is_no_hindrance(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert write_secret(tmp_path / "secret", make_key())
    assert not write_secret(tmp_path / "secret", make_key())
    assert len(read_secret(tmp_path / "secret").key) == 64
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(file, mode, home):
    file.chmod(mode)

    with pytest.raises(UsageError, match=f"can be read by other users: run chmod 600 {file}"):
        find_secret(file, home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_and_one_of_roots_is_not(file, home):
    assert find_secret(file, home).key
    os.chown(file, 12345, 12345)

    with pytest.raises(UsageError, match="belongs to user 12345, who can change it: use a copy of your own"):
        find_secret(file, home)


@pytest.mark.parametrize("content", [b"", b" \n\t"])
def test_an_empty_file_is_refused(file, content, home):
    file.write_bytes(content)

    with pytest.raises(UsageError, match="is empty"):
        find_secret(file, home)


def test_a_secret_that_can_be_guessed_is_refused(file, home):
    file.write_bytes(b"x" * (SECRET_BYTES_MIN - 1))

    with pytest.raises(UsageError, match=f"holds {SECRET_BYTES_MIN - 1} bytes and can be guessed: use at least 16"):
        find_secret(file, home)
    with pytest.raises(UsageError, match=r"\$HOLDFAST_SECRET holds 6 bytes and can be guessed"):
        find_secret(None, {**home, "HOLDFAST_SECRET": "sesame"})


def test_a_file_that_is_too_long_is_refused(file, home):
    file.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))

    with pytest.raises(UsageError, match=f"over {SECRET_BYTES_MAX} bytes"):
        find_secret(file, home)


def test_a_file_that_is_not_there_is_named(tmp_path, home):
    with pytest.raises(UsageError, match=r"cannot read the secret file .*missing: No such file.*holdfast secret new"):
        find_secret(tmp_path / "missing", home)


def test_a_home_that_cannot_be_written_says_what_to_set(tmp_path):
    blocker = tmp_path / "a-file"
    blocker.touch()

    with pytest.raises(UsageError, match="or set HOLDFAST_HOME to such a folder"):
        find_secret(None, {"HOLDFAST_HOME": str(blocker / "home")})


def test_a_secret_does_not_show_itself(file):
    secret = read_secret(file)

    assert "what the file says" not in repr(secret)
    assert "what the file says" not in secret.wrong_at(REMOTE)
    assert secret.fingerprint not in secret.key.decode()
    assert secret.fingerprint != Secret(b"another", "x").fingerprint


def found_by_child(secret, **environ):
    code = "from holdfast.wire.secret import find_secret; print(find_secret().key.decode())"
    env = {**os.environ, **environ, **secret.as_environ()}
    return subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True)


def test_a_child_finds_the_same_secret_whatever_its_environment_said(file, home, monkeypatch):
    monkeypatch.chdir(file.parent)
    around = {**home, "HOLDFAST_SECRET": TEXT, "HOLDFAST_INSECURE": "1", "HOLDFAST_SECRET_FILE": "/nonexistent"}
    for secret in (
        read_secret(file.name),  # from the current folder, which is not the child's
        find_secret(None, {**home, "HOLDFAST_SECRET": "another text, also long"}),
        find_secret(None, home, alone=True),
        find_secret(None, home),
        Secret(b"", "none"),
    ):
        assert found_by_child(secret, **around).stdout.strip() == secret.key.decode(), secret


def test_a_secret_from_a_pipe_reaches_children_by_a_variable(home):
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode() + b"\n")
    os.close(writing)

    secret = read_secret(f"/dev/fd/{reading}")
    os.close(reading)

    assert found_by_child(secret, **home).stdout.strip() == TEXT


def test_one_run_gets_a_secret_that_does_not_give_the_users_own_away():
    key = make_key()

    assert derive_key(key, "job7") == derive_key(key, "job7")
    assert len({key, derive_key(key, "job7"), derive_key(key, "job8"), derive_key(make_key(), "job7")}) == 4


def test_a_wrong_secret_says_what_to_copy_from_where(file, home):
    own, path = find_secret(None, home), user_secret_path(home)

    assert own.wrong_at(REMOTE) == (
        "the shared secret is wrong: this node and the coordinator at node-1:1 have different ones. "
        f"This node uses this user's own, {path}: copy the file from there (scp node-1:{path} {path}); "
        "or give every node the same --secret-file, or set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET; "
        "or --insecure, to use none"
    )
    assert "the coordinator may be another user's, or have another home" in own.wrong_at(LOOPBACK)
    assert f"This node uses the file {file}; give" in read_secret(file).wrong_at(REMOTE)
    assert "leave that out" in Secret(b"", "none").wrong_at(REMOTE)
