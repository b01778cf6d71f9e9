"""What is released: a wheel and an sdist that build, hold what they should, and work where there is nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
#: How long one command may take on a busy machine.
PATIENCE_S = 240
BUILD = "import sys; from hatchling import build; print(build.build_{kind}(sys.argv[1]))"
IMPORT_TIME = """
import time
began = time.perf_counter()
import holdfast, holdfast.cli
print(f"{(time.perf_counter() - began) * 1000:.0f}")
"""


class Package(NamedTuple):
    """What was built, and an environment that has the wheel and what it needs, and nothing else."""

    folder: Path

    @property
    def wheel(self) -> Path:
        return next(self.folder.glob("dist/*.whl"))

    @property
    def sdist(self) -> Path:
        return next(self.folder.glob("dist/*.tar.gz"))

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def site(self) -> Path:
        return next(self.folder.glob("venv/lib/python*/site-packages"))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder that is not the repository."""
        environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "HOLDFAST_HOME": str(self.folder / "state"),
            "PYTHONPATH": "",
        }
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            capture_output=True,
            text=True,
            env=environ,
            cwd=self.folder / "work",
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Built and installed once for all tests, also where they run in several processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "package"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "work").exists():
            _build(ROOT, "sdist", folder)
            _build(ROOT, "wheel", folder)
            venv.create(folder / "venv", with_pip=False)
            _pip(folder, "--python", str(folder / "venv"), "install", str(next(folder.glob("dist/*.whl"))))
            (folder / "work").mkdir()
    return Package(folder)


def _build(source: Path, kind: str, folder: Path) -> None:
    """Call the build backend as pip does, with nothing but itself in its path."""
    if not (folder / "backend").exists():
        _pip(folder, "install", "--target", str(folder / "backend"), "hatchling>=1.24")
    subprocess.run(
        [sys.executable, "-c", BUILD.format(kind=kind), str(folder / "dist")],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(folder / "backend")},
        capture_output=True,
        check=True,
    )


def _pip(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot get what is needed here: {done.stderr.strip().splitlines()[-1:]}")


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_its_types_and_the_licence_and_no_test(package: Package) -> None:
    names = names_in(package.wheel)
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}

    assert modules <= names
    assert {"holdfast/py.typed", "torchelastic/__init__.py"} <= names
    assert {name.split("/")[0] for name in names} == {
        "holdfast",
        "torchelastic",
        f"holdfast-{holdfast.__version__}.dist-info",
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_metadata_says_what_it_is_and_needs(package: Package) -> None:
    with zipfile.ZipFile(package.wheel) as archive:
        data = Parser().parsestr(archive.read(f"holdfast-{holdfast.__version__}.dist-info/METADATA").decode())
    needs = {line.split(";")[0] for line in data.get_all("Requires-Dist", []) if "extra ==" not in line}

    assert (data["Name"], data["Version"], data["License-Expression"]) == (
        "holdfast",
        holdfast.__version__,
        "Apache-2.0",
    )
    assert data["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in data.get_all("Classifier", [])
    assert not any(need.startswith(("torch", "numpy")) for need in needs)


def test_the_sdist_builds_the_same_wheel(package: Package, tmp_path: Path) -> None:
    with tarfile.open(package.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (tmp_path / "backend").symlink_to(package.folder / "backend")
    _build(source, "wheel", tmp_path)

    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/")) or name.endswith(".pyc")]
    assert names_in(next(tmp_path.glob("dist/*.whl"))) == names_in(package.wheel)


@pytest.mark.parametrize("name", ["torch", "numpy", "pytest"])
def test_nothing_is_installed_that_was_not_asked_for(name: str, package: Package) -> None:
    assert package.run("python", "-c", f"import {name}").returncode == 1


def test_the_command_knows_its_version_and_its_commands(package: Package) -> None:
    version, usage = package.run("holdfast", "--version"), package.run("holdfast", "--help")

    assert version.stdout == f"holdfast, version {holdfast.__version__}\n"
    assert usage.returncode == 0
    assert "launch" in usage.stdout
    assert package.run("python", "-m", "holdfast", "--version").stdout == version.stdout


def test_a_script_is_launched(package: Package) -> None:
    (package.folder / "work" / "train.py").write_text("import os; print('rank', os.environ['RANK'])")
    done = package.run("holdfast", "launch", "--nproc-per-node", "2", "train.py")

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]


def test_a_job_is_submitted(package: Package) -> None:
    done = package.run("holdfast", "run", "utils.echo", "--msg", "hi")

    assert done.returncode == 0, done.stderr
    assert "echo/0 hi\n" in done.stderr


def test_the_old_name_answers(package: Package) -> None:
    done = package.run("python", "-c", "import torchelastic, holdfast; print(torchelastic.State is holdfast.State)")

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_demo_works(package: Package) -> None:
    done = package.run("holdfast", "demo", "--steps", "3", "--step-time", "0")

    assert done.returncode == 0, done.stdout + done.stderr


def test_import_time_and_size_are_told(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    took = package.run("python", "-c", IMPORT_TIME)
    ours = [path for name in ("holdfast", "torchelastic") for path in (package.site / name).rglob("*.py")]
    every = [path for path in package.site.rglob("*") if path.is_file() and path.suffix != ".pyc"]

    assert took.returncode == 0, took.stderr
    with capsys.disabled():
        print(
            f"\nimport holdfast and its command line: {took.stdout.strip()} ms; "
            f"installed: {_megabytes(ours)} MB of ours, {_megabytes(every)} MB with what it needs"
        )


def _megabytes(paths: list[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f}"


@pytest.mark.parametrize(
    "package",
    ["holdfast", *(f"holdfast.{name}" for name in ("runner", "launcher", "checkpoint", "specs", "store", "timer"))],
)
def test_a_package_shows_its_public_names_and_nothing_else(package: str) -> None:
    code = f"""
import {package} as package
names = dir(package)
assert "TYPE_CHECKING" not in names and "Any" not in names, names
assert set(package.__all__) <= set(names), names
for name in package.__all__:
    getattr(package, name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
