"""Packages whose names are loaded late: type checkers, `dir()` and programs see the same names."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
PACKAGES = sorted(path for path in SOURCE.rglob("__init__.py") if "attach(\n" in path.read_text())
TORCH = SOURCE / "torch"


def declared(tree: ast.Module) -> dict[str, str]:
    """The names that a type checker sees, each with its module."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}


def attached(tree: ast.Module, package: str) -> dict[str, str]:
    """The names that Python finds, each with its module."""
    (call,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attach"
    ]
    return {
        name: f"{package}.{keyword.arg}"
        for keyword in call.keywords
        for name in ast.literal_eval(keyword.value).split()
    }


def test_there_are_such_packages() -> None:
    assert len(PACKAGES) > 5


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_type_checkers_and_programs_see_the_same_names(path: Path) -> None:
    package = ".".join(path.parent.relative_to(SOURCE.parent).parts)
    tree = ast.parse(path.read_text())
    names = declared(tree)

    assert names == attached(tree, package)
    module = import_module(package)
    assert sorted(names) == module.__all__ == dir(module)
    for name, home in names.items():
        if path.parent != TORCH:
            assert getattr(module, name) is getattr(import_module(home), name)


@pytest.mark.torch
def test_every_name_of_the_torch_room_is_there() -> None:
    pytest.importorskip("torch", reason="needs torch")
    import holdfast.torch

    for name in holdfast.torch.__all__:
        assert getattr(holdfast.torch, name).__module__.startswith("holdfast.torch")


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import holdfast.store

    with pytest.raises(AttributeError, match=r"module 'holdfast.store' has no attribute 'Nothing'"):
        holdfast.store.Nothing  # noqa: B018


def test_a_module_is_imported_with_the_first_use_of_one_of_its_names() -> None:
    code = (
        "import sys, holdfast.store as store\n"
        "before = 'holdfast.store.memory' in sys.modules\n"
        "store.MemoryStore\n"
        "print(before, 'holdfast.store.memory' in sys.modules, 'holdfast.store.client' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False True False\n"


def test_a_package_offers_modules_and_names_of_modules_below_them(tmp_path: Path) -> None:
    package = tmp_path / "lazy_sample"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from holdfast.lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, 'deep', **{'deep.inner': 'answer'})"
    )
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "inner.py").write_text("answer = 42")
    code = "import lazy_sample as s; print(dir(s), s.answer, s.deep.__name__, 'answer' in vars(s))"

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "['answer', 'deep'] 42 lazy_sample.deep True\n"
