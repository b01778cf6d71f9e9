"""Which modules to preload: read from a script's own imports, without running it.

A wrong guess may change a program's behaviour, a missed one only costs a second or two. So a module is named only if:

- it is known to be heavy, and safe to fork (`HEAVY`);
- the script imports it unconditionally at its top, or a module of the program that is imported so does;
- nothing that runs before could change what that import sees. The walk through the script ends at the first
  statement that could (`effects.py`), and at the first import that is neither standard, nor known to be harmless, nor a
  module beside the script. The latter are read in the same way, and those that they import.

Modules that torch imports only at first use (`LAZY` in `template_imports.py`) are preloaded with it, and
read the environment then. If the program sets one of those variables anywhere, or an unknown one, torch is
not preloaded.

This cannot see variables that an installed library sets after torch has been imported, and before it is used.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.workers.effects import OWN, Ends, Import, Kind, Library, Reader, sets_variables
from holdfast.workers.variables import is_lazy_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Modules that take long to import, start no threads by it, and can be forked.
HEAVY = frozenset(("torch", "numpy", "scipy", "pandas", "holdfast"))
#: Other libraries that set no variable which the heavy ones read, neither when they are imported nor when called.
HARMLESS = frozenset(
    {"PIL", "attr", "attrs", "click", "einops", "filelock", "fsspec", "jinja2", "matplotlib", "msgspec", "networkx"}
    | {"omegaconf", "packaging", "psutil", "pydantic", "regex", "requests", "rich", "safetensors", "sortedcontainers"}
    | {"sympy", "tabulate", "termcolor", "toml", "tomli", "torchvision", "tqdm", "typing_extensions", "yaml"}
)
SCRIPT_BYTES_MAX = 1024 * 1024
#: How many of the program's own modules are read.
FILES_MAX = 500

OURS = Path(__file__).resolve().parents[1]
_IMPORTS = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([^\n#;]+))", re.M
)
_SETTERS = re.compile(rb"environ|putenv|dotenv")


def guess(script: str | Path, search: Sequence[str | Path] | None = None) -> tuple[str, ...]:
    """Name the heavy modules that this script imports first; empty if that is not certain.

    `search` are the folders beside the script's own in which modules of the program lie, those of PYTHONPATH
    unless given.
    """
    path = Path(script)
    if search is None:
        search = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    program = _Program([path.resolve().parent, *map(Path, search)])
    found = program.preloadable(path)
    if "torch" in found and program.sets_any(path, is_lazy_variable):
        return tuple(name for name in found if name != "torch")
    return tuple(found)


def program_sets(script: str | Path, of_kind: Callable[[str], bool]) -> bool:
    """Whether a program sets a variable of a kind, or one that cannot be told."""
    path = Path(script)
    search = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return _Program([path.resolve().parent, *map(Path, search)]).sets_any(path, of_kind)


@dataclass(slots=True)
class _File:
    """One of the program's modules; `package` is the dotted name that its relative imports begin with."""

    path: Path
    package: str
    reader: Reader | None = None


@dataclass(slots=True)
class _Program:
    """A script and the modules that lie in its folders."""

    folders: list[Path]
    found: list[str] = field(default_factory=list)
    _modules: dict[str, _File | None] = field(default_factory=dict)
    _lists: dict[Path, frozenset[str]] = field(default_factory=dict)

    # -- what the script certainly imports, before anything else can matter -------------------------------------

    def preloadable(self, script: Path) -> list[str]:
        """Walk through the script to the first statement that may change what imports see."""
        try:
            tree = _parse(script)
            self._run(tree, "", is_main=True, certain=True)
        except Ends:
            pass
        return self.found

    def _run(self, tree: ast.Module, package: str, *, is_main: bool, certain: bool) -> Reader:
        def on_import(reader: Reader, node: Import, surely: bool) -> None:
            self._import(reader, node, package, certain and surely)

        reader = Reader(on_import, HEAVY | HARMLESS, is_main)
        reader.run(tree.body)
        return reader

    def _import(self, reader: Reader, node: Import, package: str, certain: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                kind = self._load(alias.name, certain)
                whole = Library(alias.name) if isinstance(kind, Library) else kind
                top = alias.name.partition(".")[0]
                reader.names[alias.asname or top] = whole if alias.asname else kind
            return
        name = _absolute(node.module, node.level, package)
        if name == "__future__":
            return
        kind = self._load(name, certain)
        for alias in node.names:
            if isinstance(kind, Library):
                if alias.name != "*":
                    reader.names[alias.asname or alias.name] = Library(f"{name}.{alias.name}")
                continue
            made = self._made_by(name)
            if alias.name == "*":
                reader.names.update({key: each for key, each in made.items() if not key.startswith("_")})
            elif alias.name in made:
                reader.names[alias.asname or alias.name] = made[alias.name]
            else:
                reader.names[alias.asname or alias.name] = self._load(f"{name}.{alias.name}", certain)

    def _load(self, name: str, certain: bool) -> Kind:
        """Import a module as Python would; returns what its first name stands for."""
        top = name.partition(".")[0]
        if top in sys.builtin_module_names:
            return Library(top)
        if self._find(top) is None:
            if top in sys.stdlib_module_names or top in HARMLESS:
                return Library(top)
            if top in HEAVY:
                if certain and top not in self.found:
                    self.found.append(top)
                return Library(top)
            if not self._is_namespace(top):
                raise Ends
        for each in _with_parents(name):
            file = self._find(each)
            if file is None and not self._is_namespace(each):
                raise Ends  # not there, or not in Python
            if file is not None and file.path.suffix != ".py":
                raise Ends
            if file is not None and file.reader is None:
                file.reader = Reader(lambda *_: None, frozenset())  # it may be imported again from within
                file.reader = self._run(_parse(file.path), file.package, is_main=False, certain=certain)
        return OWN

    def _made_by(self, name: str) -> dict[str, Kind]:
        file = self._find(name)
        return file.reader.names if file is not None and file.reader is not None else {}

    # -- where modules lie ----------------------------------------------------------------------------------------

    def _find(self, name: str) -> _File | None:
        """Look a module of the program up; None if there is none by that name."""
        if name not in self._modules:
            found = next(self._candidates(name), None)
            # Our sources may lie on PYTHONPATH: that is still the library, not a part of the program.
            ours = found is not None and OURS in found.path.resolve().parents
            self._modules[name] = None if ours else found
        return self._modules[name]

    def _candidates(self, name: str) -> Iterator[_File]:
        *parents, last = name.split(".")
        for top in self.folders:
            folder = top.joinpath(*parents)
            if last in self._list(folder) and (folder / last / "__init__.py").is_file():
                yield _File(folder / last / "__init__.py", name)
            for each in sorted(self._list(folder)):
                stem, _, suffix = each.partition(".")
                if stem == last and suffix == "py":
                    yield _File(folder / each, ".".join(parents))
                elif stem == last and suffix.rpartition(".")[2] in ("so", "pyc"):
                    yield _File(folder / each, "")  # cannot be read

    def _list(self, folder: Path) -> frozenset[str]:
        if folder not in self._lists:
            try:
                self._lists[folder] = frozenset(os.listdir(folder))  # noqa: PTH208 - names are all we need
            except OSError:
                self._lists[folder] = frozenset()
        return self._lists[folder]

    def _is_namespace(self, name: str) -> bool:
        return any(folder.joinpath(*name.split(".")).is_dir() for folder in self.folders)

    # -- what the program does later --------------------------------------------------------------------------------

    def sets_any(self, script: Path, matters: Callable[[str], bool]) -> bool:
        """Whether any module of the program sets a variable that matters, or an unknown one."""
        waiting, seen = [_File(script, "")], {script.resolve()}
        for file in waiting:
            if file.path.suffix != ".py" and file.path != script:
                continue
            try:
                data = file.path.read_bytes()
                if _SETTERS.search(data) and sets_variables(ast.parse(data), matters):
                    return True
            except (OSError, SyntaxError, ValueError, RecursionError):
                return True
            for name in _mentioned(data, file.package):
                for each in _with_parents(name):
                    other = self._find(each)
                    if other is not None and other.path not in seen:
                        seen.add(other.path)
                        waiting.append(other)
            if len(seen) > FILES_MAX:
                return True
        return False


def _parse(path: Path) -> ast.Module:
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            raise Ends
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        raise Ends from None


def _absolute(module: str | None, level: int, package: str) -> str:
    """Return the full name of the module that `from ..module import` means inside a package."""
    if not level:
        return module or ""
    parts = package.split(".") if package else []
    if level > len(parts):
        raise Ends
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: number + 1]) for number in range(len(parts)))


def _mentioned(data: bytes, package: str) -> Iterator[str]:
    """Name all modules that a source may import, anywhere in it; quicker than to parse it."""
    for found in _IMPORTS.finditer(data):
        origin, names, plain = (each.decode(errors="replace") if each else "" for each in found.groups())
        words = [each.split()[0] for each in (names or plain).strip("() \t\r\n").split(",") if each.split()]
        if plain:
            yield from words
            continue
        module = origin.lstrip(".")
        try:
            base = _absolute(module or None, len(origin) - len(module), package)
        except Ends:
            continue
        yield base
        yield from (f"{base}.{word}" for word in words if word.isidentifier())
