"""`holdfast secret`: a file that only its user can read, and how to tell two of them apart."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke


def test_a_new_secret_is_private_and_says_what_to_do_with_it(invoke: Invoke) -> None:
    said = invoke("secret", "new", "job.secret")

    path = Path("job.secret").absolute()
    assert said.code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) == 64
    assert path.read_text().strip() not in said.out
    assert f"--secret-file {path}, or HOLDFAST_SECRET_FILE={path}" in said.out
    assert "scp -p " in said.out
    assert invoke("secret", "which", "--secret-file", "job.secret").out.split()[0] in said.out


def test_a_file_that_is_there_is_not_replaced_unless_asked(invoke: Invoke) -> None:
    invoke("secret", "new", "job.secret")
    before = Path("job.secret").read_text()

    said = invoke("secret", "new", "job.secret")
    assert (said.code, Path("job.secret").read_text()) == (2, before)
    assert "is there already: --force replaces it" in said.err

    assert invoke("secret", "new", "--force", "job.secret").code == 0
    assert Path("job.secret").read_text() != before


def test_the_users_own_is_found_and_replaced(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    where = invoke("secret", "path").out.strip()
    first = invoke("secret", "which").out
    assert first.endswith(f"this user's own file {where}\n")

    assert invoke("secret", "new").code == 2
    said = invoke("secret", "new", "--force")

    assert "nodes that share this folder: nothing to do" in said.out
    assert invoke("secret", "which").out.split()[0] != first.split()[0]
    monkeypatch.setenv("HOLDFAST_SECRET", "another that is in use")
    assert invoke("secret", "which").out.endswith("$HOLDFAST_SECRET\n")
    assert invoke("secret", "path").out.strip() == where


def test_the_secret_of_one_run_is_the_same_each_time(invoke: Invoke) -> None:
    for name, run in (("a", "job7"), ("b", "job7"), ("c", "job8")):
        assert invoke("secret", "new", name, "--run", run).code == 0

    texts = [Path(name).read_text() for name in ("a", "b", "c")]
    assert texts[0] == texts[1] != texts[2]
    assert Path(invoke("secret", "path").out.strip()).read_text() not in texts


def test_mistakes(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--run needs a file to write to" in invoke("secret", "new", "--run", "job7").err
    assert "cannot create the secret file" in invoke("secret", "new", "no-such-folder/x").err
    monkeypatch.setenv("HOLDFAST_INSECURE", "1")
    assert invoke("secret", "which").out.startswith("none: ")
