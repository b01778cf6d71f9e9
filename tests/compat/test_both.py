"""The same small program prints the same under the real package and under ours.

torch is installed beside us. The real TorchX is installed into an environment of its own, once.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))
TORCHX = "torchx==0.7.0"
#: No program takes that long; it only keeps a broken one from hanging.
PATIENCE_S = 300
ENVIRONMENT = HERE.parent.parent / ".venv-torchx"


@pytest.fixture(scope="session")
def real_torchx() -> str:
    """The Python that has the real TorchX."""
    ready = ENVIRONMENT / ".ready"
    with (HERE.parent.parent / ".venv-torchx.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not ready.exists():
            venv.create(ENVIRONMENT, with_pip=True, clear=True)
            pip = [str(ENVIRONMENT / "bin" / "pip"), "install", "--quiet", "--retries", "0", "--timeout", "20", TORCHX]
            done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            if done.returncode:
                pytest.skip(f"{TORCHX} cannot be installed here: {done.stderr.strip()[-200:]}")
            ready.touch()
    return str(ENVIRONMENT / "bin" / "python")


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_the_same(program: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if program.stem.startswith("torchx"):
        theirs = [request.getfixturevalue("real_torchx")]
    else:
        pytest.importorskip("torch")
        theirs = [sys.executable]

    expected = printed(tmp_path / "theirs", [*theirs, "-W", "ignore", str(program)])
    found = printed(tmp_path / "ours", [sys.executable, "-W", "ignore", "-m", "holdfast.compat", str(program)])

    assert found == expected
    assert len(expected) > 5


def printed(folder: Path, command: list[str]) -> list[str]:
    """Run a program in a folder of its own, which is its home too, and return its lines."""
    folder.mkdir()
    dropped = ("TORCHX", "TORCHELASTIC", "PET_", "HOLDFAST", "PYTHON", "VIRTUAL_ENV")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    environ |= {"HOME": str(folder), "HOLDFAST_HOME": str(folder / ".state")}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environ, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()
