"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))

#: What a pure module must not touch: clocks, sockets, processes, files, threads, logs, randomness of its own.
OUTSIDE = frozenset(
    [
        "asyncio",
        "ctypes",
        "datetime",
        "fcntl",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "psutil",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
    ]
)


def imports_of(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def is_pure(tree: ast.Module) -> bool:
    """A module says of itself that it is pure, in the first paragraph of its docstring; every machine.py is."""
    return "Pure." in (ast.get_docstring(tree) or "").split("\n\n")[0]


PURE = [path for path in MODULES if is_pure(ast.parse(path.read_text()))]


def test_every_machine_says_that_it_is_pure() -> None:
    machines = [path for path in MODULES if path.name == "machine.py" and path.parent != SOURCE]

    assert machines
    assert [path for path in machines if path not in PURE] == []


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_pure_module_imports_nothing_of_the_outside(path: Path) -> None:
    tree = ast.parse(path.read_text())
    pure = {str(each.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".") for each in PURE}
    # Shared vocabulary without behaviour, and facts, which are only values to a machine.
    pure |= {"holdfast.machine", "holdfast.errors", "holdfast.facts"}

    for name in imports_of(tree):
        assert name.partition(".")[0] not in OUTSIDE, f"{path.name} imports {name}"
        if name.startswith("holdfast"):
            inner = {other for other in pure if other == name or other.startswith(f"{name}.")}
            assert inner, f"{path.name} is pure but imports {name}, which is not"


def test_the_core_never_imports_torch_or_numpy() -> None:
    names = [
        str(path.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py" and path.relative_to(SOURCE).parts[0] != "torch"
    ]
    code = "\n".join(
        [
            "import sys",
            "class Block:",
            "    def find_spec(self, name, path=None, target=None):",
            "        if name.partition('.')[0] in ('torch', 'numpy', 'jax'):",
            "            raise AssertionError(f'the core imports {name}')",
            "sys.meta_path.insert(0, Block())",
            *[f"import {name}" for name in [*names, "holdfast.torch"]],
            "assert not {'torch', 'numpy'} & set(sys.modules)",
        ]
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_no_pickle_on_any_wire() -> None:
    for path in MODULES:
        if path.relative_to(SOURCE).parts[0] in ("wire", "store", "coordinator", "rendezvous"):
            assert not {"pickle", "marshal", "shelve"} & set(imports_of(ast.parse(path.read_text()))), path
