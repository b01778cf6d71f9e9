"""What to preload: told from a script's own top-level imports, without running it.

Conservative: a wrong guess may change what a program does, a missed one only costs it a second. So only
modules known to be heavy and safe to fork are named, only from imports that the script makes unconditionally
at its top, and none at all where the script first changes something that those imports look at.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.workers.warm import is_import_variable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Modules that take long to import, start no threads by it, and can be forked.
HEAVY = ("torch", "numpy", "scipy", "pandas", "holdfast")
SCRIPT_BYTES_MAX = 1024 * 1024

_WATCHED = ("environ", "environb", "putenv", "unsetenv", "meta_path", "path_hooks", "execv", "execve", "execvp")


def guess(script: str | Path) -> tuple[str, ...]:
    """Name the heavy modules that this script imports first thing; empty where that is not safe to tell."""
    path = Path(script)
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            return ()
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: list[str] = []
    for node in tree.body:
        names = dict.fromkeys(name for name in _imported(node) if name in HEAVY)
        found += [name for name in names if name not in found and not _shadowed(path.parent, name)]
        if not isinstance(node, ast.Import | ast.ImportFrom) and _prepares_imports(node):
            break
    return tuple(found)


def _imported(node: ast.stmt) -> Iterator[str]:
    """Name the top-level packages that this statement certainly imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module.partition(".")[0]


def _shadowed(folder: Path, name: str) -> bool:
    """Whether the script would import a module of its own folder by that name."""
    return (folder / name).is_dir() or (folder / f"{name}.py").exists()


def _prepares_imports(node: ast.stmt) -> bool:
    """Whether this statement changes the environment, the path, or anything else that later imports may see.

    Definitions are harmless, since nothing in them runs yet. Any other statement is if it mentions neither
    the environment, with a variable that imports read or one that cannot be told, nor the search path.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    told: set[int] = set()  # mentions of the environment whose variable we know
    for inner in ast.walk(node):
        mention, key = _variable_use(inner)
        if mention is not None and isinstance(key, ast.Constant) and isinstance(key.value, str):
            if is_import_variable(key.value):
                return True
            told.add(id(mention))
    return any(_touches_imports(inner) and id(inner) not in told for inner in ast.walk(node))


def _variable_use(node: ast.AST) -> tuple[ast.AST | None, ast.AST | None]:
    """Where `node` uses one variable (`environ[key]`, `environ.get(key)`, `putenv(key, ...)`): the mention, its key."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Call) and node.args:
        function = node.func
        if isinstance(function, ast.Attribute) and _name(function) not in ("putenv", "unsetenv"):
            return function.value, node.args[0]
        return function, node.args[0]
    return None, None


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _touches_imports(node: ast.AST) -> bool:
    """Whether this expression names the environment, the search path, or the machinery of imports."""
    if isinstance(node, ast.Attribute) and node.attr == "path":
        return _name(node.value) == "sys"
    return isinstance(node, ast.Attribute | ast.Name) and _name(node) in _WATCHED
