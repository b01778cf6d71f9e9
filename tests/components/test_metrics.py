"""TensorBoard beside a run, with a program in its place that only waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.components.finder import get_component
from holdfast.components.metrics import tensorboard


def watch(tmp_path: Path, body: str, **more: str | float) -> subprocess.Popen[str]:
    """Start what the component starts, with a program of ours where TensorBoard would be."""
    program = tmp_path / "tensorboard"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    program.chmod(0o755)
    (role,) = tensorboard("/logs", **more).roles  # type: ignore[arg-type]
    return subprocess.Popen(
        [sys.executable, *role.args],
        env={"PATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_found_by_the_name_that_torchx_has() -> None:
    role = get_component("metrics.tensorboard").fn("/logs", port=7007).roles[0]

    assert role.args[-6:] == ["tensorboard", "--bind_all", "--port", "7007", "--logdir", "/logs"]
    assert role.port_map == {"http": 7007}
    assert "$" not in "".join(role.args)


def test_it_ends_with_its_program(tmp_path: Path) -> None:
    process = watch(tmp_path, "print(*sys.argv[1:]); sys.exit(3)")
    out, _ = process.communicate(timeout=240)

    assert (process.returncode, out) == (3, "--bind_all --port 6006 --logdir /logs\n")


@pytest.mark.parametrize("exists", [True, False], ids=["at once", "later"])
def test_it_ends_when_the_file_is_there(tmp_path: Path, exists: bool) -> None:
    done = tmp_path / "done"
    if exists:
        done.touch()
    process = watch(tmp_path, "print('up', flush=True); time.sleep(1000)", exit_on_file=str(done))
    assert process.stdout is not None
    if not exists:
        assert process.stdout.readline() == "up\n"
        done.touch()

    process.communicate(timeout=240)

    assert process.returncode == 0


def test_it_begins_when_the_file_is_there_and_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "begin").touch()
    process = watch(tmp_path, "time.sleep(1000)", start_on_file=str(tmp_path / "begin"), timeout=0.1)

    _, err = process.communicate(timeout=240)

    assert (process.returncode, err) == (1, "ended after 0.1 s\n")
