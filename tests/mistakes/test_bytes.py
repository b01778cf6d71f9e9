"""Names and messages that are not UTF-8, as file names of other systems often are."""

from __future__ import annotations

import pytest

from tests.mistakes.conftest import answered, shell

#: A byte that is no UTF-8, as bash writes it.
BAD = r"$'caf\xe9'"


@pytest.mark.parametrize("flags", [f"--nnodes 1:2 --rdzv-id {BAD}", f"--role {BAD}"])
def test_an_id_or_a_role_that_is_not_utf8_is_answered_by_one_sentence(flags: str) -> None:
    answered(shell(f"holdfast launch {flags} ok.py"), r"'caf\udce9' is not valid UTF-8")


def test_a_worker_that_names_such_a_file_is_restarted_like_any_other() -> None:
    with open("names.py", "w") as script:  # noqa: PTH123 - a file beside the others of this test
        script.write(
            "import os\n"
            "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
            "    raise FileNotFoundError(os.fsdecode(b'caf\\xe9.txt'))\n"
            "print('done')\n"
        )
    said = shell("holdfast launch --max-restarts 1 --join-timeout 60 names.py")

    assert said.code == 0, said.err
    assert said.out == "done\n"
    assert r"caf\udce9.txt" in said.err


def test_a_job_that_fails_so_is_reported_on_any_terminal() -> None:
    with open("names.py", "w") as script:  # noqa: PTH123 - a file beside the others of this test
        script.write("import os\nraise ValueError(os.fsdecode(b'caf\\xe9.txt') + ' größer')\n")
    for variables in ({}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}):
        said = shell("holdfast launch names.py", **variables)

        assert said.code == 1, said.err
        assert r" s: ValueError: caf\udce9.txt gr" in said.err
        assert "listener" not in said.err


def test_a_listing_shows_such_a_word_as_escapes() -> None:
    said = shell(f"holdfast run --dryrun utils.echo --msg {BAD}", PYTHONIOENCODING="utf-8:strict")

    assert said.code == 0, said.err
    assert r"caf\udce9" in said.out
