"""Packages that are installed, in a folder of their own, and programs that see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.specs import Role, macros


class Site:
    """A folder with packages, as pip would have left them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cwd = root.parent / "cwd"
        for folder in (root, self.cwd):
            folder.mkdir()

    def write(self, path: str, text: str = "") -> Path:
        """Write a file of a package; its folders get no `__init__.py` by themselves."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    def install(self, name: str, entries: Sequence[str], group: str = "torchx.components") -> None:
        """Write what the installed package registers."""
        folder = f"{name.replace('-', '_')}-1.0.dist-info"
        self.write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.write(f"{folder}/entry_points.txt", "\n".join([f"[{group}]", *entries, ""]))

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run a program that sees the packages."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.cwd,
            env={**os.environ, "PYTHONPATH": str(self.root)},
        )

    def answer(self, code: str) -> Any:
        """Run a program and return what it printed last, as data."""
        done = self.python(f"import json\nfrom holdfast.components import finder\n{textwrap.dedent(code)}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def names(self) -> list[str]:
        """List the components."""
        found: list[str] = self.answer("print(json.dumps(list(finder.get_components())))")
        return found

    def error(self, name: str) -> str:
        """Return what is said of a component that cannot be had."""
        said: str = self.answer(
            f"""
            from holdfast.errors import HoldfastError
            try:
                finder.get_component({name!r})
                print(json.dumps("found"))
            except HoldfastError as error:
                print(json.dumps(f"{{type(error).__name__}}: {{error}}"))
            """
        )
        return said


TRAINER = """
import torchx.specs as specs

def trainer(name: str) -> specs.AppDef:
    \"\"\"Train something.\"\"\"
    return specs.AppDef(name=name)
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder for packages."""
    return Site(tmp_path / "site")


@pytest.fixture
def project(site: Site) -> Site:
    """The project of the documentation: `my_project/bar/baz.py` with a trainer, not yet registered."""
    site.write("my_project/__init__.py")
    site.write("my_project/bar/__init__.py")
    site.write("my_project/bar/baz.py", TRAINER)
    return site


class Replica:
    """One replica of a role as a process of this machine."""

    def __init__(self, role: Role, number: int, environ: dict[str, str], cwd: Path) -> None:
        filled = macros.Values("/", "app-1", str(number), "TEST_RANK0_HOST").apply(role)
        self.process = subprocess.Popen(
            [filled.entrypoint, *filled.args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**environ, **filled.env},
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., list[Replica]]:
    """Starts every replica of a role, with this Python first on the path."""
    python = str(Path(sys.executable).parent)
    environ = {
        **os.environ,
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "TEST_RANK0_HOST": "localhost",
    }

    def run(role: Role, **extra: str) -> list[Replica]:
        return [Replica(role, number, {**environ, **extra}, tmp_path) for number in range(role.num_replicas)]

    return run


@pytest.fixture
def run(start: Callable[..., list[Replica]]) -> Callable[..., str]:
    """Runs a role to its end and returns what all its replicas printed; each must succeed."""

    def complete(role: Role, **extra: str) -> str:
        printed = []
        for replica in start(role, **extra):
            code, out, err = replica.end()
            assert code == 0, err
            printed.append(out)
        return "".join(printed)

    return complete
