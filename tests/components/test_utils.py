"""The small components: what they ask for, and that it runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.components.arguments import materialize_appdef
from holdfast.components.utils import binary, booth, copy, echo, python, sh, touch
from holdfast.errors import UsageError
from holdfast.specs import AppDef, BindMount, Role, resource

SMALL = resource(cpu=1, gpu=0, memMB=1024)


def only(app: AppDef) -> Role:
    (role,) = app.roles
    return role


def test_echo_prints_its_message_on_every_replica(run: Callable[..., str]) -> None:
    role = only(materialize_appdef(echo, ["--msg", "it's $HOME", "--num_replicas", "2"]))

    assert (role.name, role.num_replicas, role.image, role.resource) == ("echo", 2, "", SMALL)
    assert run(role) == "it's $HOME\n" * 2
    assert run(only(echo())) == "hello world\n"


def test_touch_makes_a_file(tmp_path: Path, run: Callable[..., str]) -> None:
    role = only(materialize_appdef(touch, ["--file", "a file"]))

    run(role)

    assert (tmp_path / "a file").read_bytes() == b""
    assert role.resource == SMALL
    with pytest.raises(UsageError, match="touch needs --file"):
        materialize_appdef(touch, [])


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["echo", "$HOME", "a  b", "it's", ";", "false"], "$HOME a  b it's ; false\n"),
        (["printf", "%s|", "a b", "--help"], "a b|--help|"),
        (["echo a | tr a b && echo $$GREETING"], "b\nhi\n"),
        (["echo", "${app_id}"], "app-1\n"),
    ],
)
def test_sh_expands_one_line_and_nothing_in_several_words(
    words: list[str], printed: str, run: Callable[..., str]
) -> None:
    role = only(materialize_appdef(sh, ["--env", "GREETING=hi", *words]))

    assert run(role) == printed


def test_sh_takes_what_every_job_takes() -> None:
    role = only(
        materialize_appdef(
            sh,
            shlex.split(
                "--image i --num_replicas 2 --cpu 3 --gpu 1 --memMB 10 --max_retries 5 --entrypoint bash "
                "--mounts type=bind,src=/a,dst=/b -- ls -l"
            ),
        )
    )

    assert (role.entrypoint, role.args) == ("bash", ["-c", "ls -l"])
    assert (role.image, role.num_replicas, role.max_retries) == ("i", 2, 5)
    assert role.resource == resource(cpu=3, gpu=1, memMB=10)
    assert role.mounts == [BindMount("/a", "/b")]
    with pytest.raises(UsageError, match="say what to run"):
        sh()


def test_python_runs_a_line_a_module_and_a_script(tmp_path: Path, run: Callable[..., str]) -> None:
    line = "import sys; print(sys.argv[1:])"
    (tmp_path / "a script.py").write_text(line)
    (tmp_path / "module_here.py").write_text(line)

    assert run(only(python("a b", "--c", c=line))) == "['a b', '--c']\n"
    assert run(only(materialize_appdef(python, ["-m", "module_here", "--", "-x"]))) == "['-x']\n"
    assert run(only(python("$HOME", script="a script.py"))) == "['$HOME']\n"


def test_python_takes_exactly_one_of_its_ways() -> None:
    for given in ({}, {"m": "a", "c": "b"}, {"c": "", "script": "x"}):
        with pytest.raises(UsageError, match="give one of -m"):
            python(**given)  # type: ignore[arg-type]
    app = python(c="pass", name="job", h="gpu.small", num_replicas=3, env={"A": "1"}, max_retries=2)
    role = only(app)
    assert (app.name, role.name, role.num_replicas, role.env, role.max_retries) == ("job", "job", 3, {"A": "1"}, 2)
    assert role.resource == resource(h="gpu.small")


def test_binary_runs_a_program_without_a_shell(run: Callable[..., str]) -> None:
    app = materialize_appdef(binary, ["--entrypoint", "printf", "--name", "job", "%s|", "a b", "$HOME"])

    assert (app.name, only(app).name) == ("job", "printf")
    assert run(only(app)) == "a b|$HOME|"


def test_copy_copies_files_and_folders_without_anything_installed(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "a file").write_text("text")
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "folder/sub/x").write_text("x")
    (tmp_path / "there").mkdir()
    (tmp_path / "fsspec.py").write_text("raise ImportError('not to be imported')")

    for src, dst in [
        ("a file", "new/deep/b"),
        (f"file://{tmp_path}/a file", "there"),
        ("a file", "made/"),
        ("folder/", "there"),
        ("folder", "new/folder"),
    ]:
        run(only(materialize_appdef(copy, ["--src", src, "--dst", dst])))

    assert (tmp_path / "new/deep/b").read_text() == "text"
    assert (tmp_path / "there/a file").read_text() == "text"
    assert (tmp_path / "made/a file").read_text() == "text"
    assert (tmp_path / "there/folder/sub/x").read_text() == "x"
    assert (tmp_path / "new/folder/sub/x").read_text() == "x"


def test_copy_says_in_one_line_what_is_wrong(tmp_path: Path, start: Callable[..., list[object]]) -> None:
    for src, said in [("gone", "cannot copy gone to x: [Errno 2]"), ("s3x://b/k", "cannot copy s3x://b/k to x: ")]:
        (replica,) = start(only(copy(src, "x")))
        code, _, err = replica.end()  # type: ignore[attr-defined]

        assert code == 1
        assert err.startswith(said)
        assert err.count("\n") == 1


def test_copy_uses_fsspec_for_urls(tmp_path: Path, run: Callable[..., str]) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "a").write_text("text")

    run(only(copy(f"local://{tmp_path}/a", f"local://{tmp_path}/b")))

    assert (tmp_path / "b").read_text() == "text"


def test_booth_leaves_its_value_where_a_tracker_of_results_finds_it(tmp_path: Path, run: Callable[..., str]) -> None:
    pytest.importorskip("fsspec")
    from holdfast.tracker.results import FsspecResultTracker

    base = str(tmp_path / "results")
    words = ["--x1", "0", "--x2", "0", "--trial_idx", "3", "--tracker_base", base]

    assert run(only(materialize_appdef(booth, words))) == "booth(0, 0) = 74\n"
    assert run(only(booth(1, 3, tracker_base=f"local://{base}"))) == "booth(1, 3) = 0\n"
    assert FsspecResultTracker(base)[3] == {"booth_eval": 74.0}
    assert FsspecResultTracker(base)[0] == {"booth_eval": 0.0}
