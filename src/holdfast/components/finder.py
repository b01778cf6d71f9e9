"""Finds components by name: registered by entry point, builtin, in a file, or anywhere Python can import from.

An entry point `foo = my_project.bar` of the group `holdfast.components` or `torchx.components` brings every component
of the package, as `foo.<module>.<function>`; a name that begins with an underscore brings them without a prefix.
Folders without `__init__.py` are not searched, but a package without one may be registered itself.

What is registered takes the place of the builtins, unless they are registered again, by `holdfast =
holdfast.components`, or nothing usable is registered at all. `problems()` reports a module that cannot be imported,
which does not affect the others.

A component is a public function, defined in the module itself, that returns an `AppDef`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from holdfast import plugins
from holdfast.components.errors import Problem
from holdfast.errors import ComponentNotFoundError, ComponentValidationError
from holdfast.home import expand

__all__ = [
    "Component",
    "ComponentNotFoundError",
    "ComponentValidationError",
    "find_component",
    "forget",
    "get_builtin_source",
    "get_component",
    "get_components",
    "problems",
]

GROUPS = ("holdfast.components", "torchx.components")
ROOT = "holdfast.components"
#: What a plugin's module may raise while it is imported.
BROKEN = (Exception, SystemExit)
#: The modules of this package that hold components; the others are machinery.
BUILTINS = ("dist", "utils")
#: Components that are found by name but not listed.
UNLISTED = ("metrics",)


class Component:
    """A function that makes an app, and the name it is known by; its module is imported when `fn` is asked for."""

    def __init__(self, name: str, description: str, source: str, load: Callable[[], Callable[..., Any]]) -> None:
        self.name = name
        #: The first line of its docstring.
        self.description = description
        #: Where it comes from: a module or a file.
        self.source = source
        self._load = load

    @cached_property
    def fn(self) -> Callable[..., Any]:
        """The function."""
        return self._load()

    @property
    def fn_name(self) -> str:
        """The function's own name."""
        return self.name.rpartition(".")[2].rpartition(":")[2]

    @property
    def validation_errors(self) -> list[Problem]:
        """What keeps the function from being a component."""
        from holdfast.components.validation import validate  # a list of names needs no checks

        return validate(self.fn)

    def __repr__(self) -> str:
        return f"Component({self.name!r} from {self.source})"


def get_components() -> dict[str, Component]:
    """Return every component that can be called by its short name, in the order in which they are listed."""
    return dict(_scan().components)


def get_component(name: str) -> Component:
    """Return the component of this name, checked.

    Raises `ComponentNotFoundError`, `ComponentValidationError`, or `PluginBrokenError` where its module is.
    """
    component = find_component(name)
    if found := component.validation_errors:
        raise ComponentValidationError(f"'{name}' is not a component: {'; '.join(map(str, found))}")
    return component


def find_component(name: str) -> Component:
    """Return the component of this name, whether or not its signature is right."""
    if ":" in name:
        return _from_file(name)
    component = _registered(name) or _builtin(name) or _dotted(name)
    if component is None:
        raise ComponentNotFoundError(_not_found(name))
    return component


def get_builtin_source(name: str) -> str:
    """Return the source of a component as a file of its own: with the imports and the helpers that it needs."""
    fn = get_component(name).fn
    module = inspect.getsource(inspect.getmodule(fn) or fn)
    body = ast.parse(module).body
    wanted = _needed(body, fn.__name__)
    kept = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) or wanted & _defined(node)]
    lines = module.splitlines()
    pieces = ["\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for node in kept]
    count = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in kept)
    return "\n\n\n".join(["\n".join(pieces[:count]), *pieces[count:]]) + "\n"


def _needed(body: list[ast.stmt], name: str) -> set[str]:
    """Return the names of a module that a function of it needs, its own and those of its helpers' helpers included."""
    found, new = set(), {name}
    while new:
        found |= new
        nodes = [node for node in body if new & _defined(node)]
        used = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
        new = {each for node in body for each in _defined(node) & used} - found
    return found


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines, imports left out."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        each.id for target in targets if target is not None for each in ast.walk(target) if isinstance(each, ast.Name)
    }


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def problems() -> list[Problem]:
    """Say what is wrong with anything that is registered: entries, modules, and components."""
    return list(_scan().problems)


def forget() -> None:
    """Look anew at what is registered; for tests and for programs that install packages as they run."""
    _scan.cache_clear()


# -- what is registered ---------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    prefix: str
    module: str
    #: The entry as its author wrote it, and the package it is of.
    said: str


class _Found(NamedTuple):
    components: dict[str, Component]
    problems: list[Problem]
    #: Whether the builtins gave way to what is registered.
    hides_builtins: bool


Report = Callable[[Problem], None]


@cache
def _scan() -> _Found:
    """Import every module that is registered, and list what it holds; the builtins are only read."""
    found: list[Problem] = []
    components: dict[str, Component] = {}
    for entry in _entries(found.append):
        for prefix, module in _walk(entry.prefix, entry.module, entry.said, found.append):
            for component in _in_module(prefix, module, entry.said, found.append):
                components[component.name] = component
    if found:
        _tell(found)
    if components:
        return _Found(components, found, hides_builtins=True)
    return _Found({each.name: each for name in BUILTINS for each in _read_builtins(name, name)}, found, False)


def _entries(report: Report) -> list[_Entry]:
    entries = []
    for group in GROUPS:
        # All of them, and not one for each name: two packages may well both say `_`.
        for point in plugins.every(group):
            package = point.dist.name if point.dist is not None else "an unknown package"
            said = f"{point.name} = {point.value} ({group} of {package})"
            if ":" in point.value:
                report(Problem(said, "an entry for components must name a module, without a colon"))
            else:
                entries.append(_Entry("" if point.name.startswith("_") else point.name, point.value.strip(), said))
    return entries


def _walk(prefix: str, name: str, said: str, report: Report) -> Iterator[tuple[str, str]]:
    """Yield the prefix and the name of every module below one; only packages are imported for it."""
    module = _import_or_report(name, said, report)
    if module is None:
        return
    if module.__name__ == ROOT:
        yield from ((_join(prefix, each), f"{ROOT}.{each}") for each in BUILTINS)
        return
    yield prefix, name
    if not hasattr(module, "__path__"):
        return
    import pkgutil

    for info in pkgutil.iter_modules(module.__path__):
        if info.ispkg:
            yield from _walk(_join(prefix, info.name), f"{name}.{info.name}", said, report)
        elif info.name != "__main__":
            yield _join(prefix, info.name), f"{name}.{info.name}"


def _in_module(prefix: str, name: str, said: str, report: Report) -> Iterator[Component]:
    """Yield the components of one module, and report the functions that only look like one."""
    if name in (f"{ROOT}.{each}" for each in BUILTINS):
        yield from _read_builtins(prefix, name.rpartition(".")[2])
        return
    module = _import_or_report(name, said, report)
    for attribute, fn in sorted(_functions(module).items()) if module is not None else ():
        component = _component(_join(prefix, attribute), fn, name)
        wrong = component.validation_errors
        for problem in wrong:
            report(replace(problem, subject=component.name))
        if not wrong:
            yield component


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the public functions that a module defines itself and that promise an app."""
    from holdfast.components.signature import returns_app

    return {
        name: fn
        for name, fn in vars(module).items()
        if inspect.isfunction(fn)
        and not inspect.iscoroutinefunction(fn)
        and not name.startswith("_")
        and fn.__module__ == module.__name__
        and returns_app(fn)
    }


def _read_builtins(prefix: str, module: str) -> Iterator[Component]:
    """List the components of one of our own modules from its source, which takes less time than to import it."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_bytes())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    for node in sorted(functions, key=lambda each: each.name):
        if isinstance(node.returns, ast.Name) and node.returns.id == "AppDef":
            yield _own(_join(prefix, node.name), module, node.name, ast.get_docstring(node) or "")


def _own(name: str, module: str, function: str, docstring: str) -> Component:
    def load() -> Callable[..., Any]:
        fn: Callable[..., Any] = getattr(importlib.import_module(f"{ROOT}.{module}"), function)
        return fn

    return Component(name, docstring.partition("\n")[0], f"{ROOT}.{module}", load)


# -- one name -------------------------------------------------------------------------------------------------------


def _registered(name: str) -> Component | None:
    """Look a name up among what is registered, importing no more modules than its own; of equal names the last wins."""
    prefix, _, function = name.rpartition(".")
    broken: plugins.PluginBrokenError | None = None
    for module, said in _modules_for(prefix):
        try:
            fn = _function(_import(module, said), function)
        except plugins.PluginBrokenError as error:
            broken = error  # another entry may have the same name
        else:
            if fn is not None and not function.startswith("_"):
                return _component(name, fn, module)
    if broken is not None:
        raise broken
    return None


def _modules_for(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the registered modules whose components have this prefix, the last one first, and the entry of each."""
    for entry in reversed(_entries(_ignore)):
        if not entry.prefix or f"{prefix}.".startswith(f"{entry.prefix}."):
            for found, module in _walk(entry.prefix, entry.module, entry.said, _ignore):
                if found == prefix:
                    yield module, entry.said


def _builtin(name: str) -> Component | None:
    prefix, _, function = name.rpartition(".")
    if prefix not in (*BUILTINS, *UNLISTED) or _builtins_are_hidden():
        return None
    fn = _function(importlib.import_module(f"{ROOT}.{prefix}"), function)
    return None if fn is None or function.startswith("_") else _component(name, fn, f"{ROOT}.{prefix}")


def _builtins_are_hidden() -> bool:
    """Whether what is registered has taken their place; nothing is imported where nothing is registered."""
    return bool(_entries(_ignore)) and _scan().hides_builtins


def _dotted(name: str) -> Component | None:
    """Import a function by its full name; the current folder is looked into last."""
    path, _, function = name.rpartition(".")
    if not path or not all(part.isidentifier() for part in name.split(".")):
        return None
    _also_from(Path.cwd())
    try:
        module = _import(path, name)
    except plugins.PluginBrokenError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{path}.".startswith(f"{missing.name}."):
            return None  # there is no such module, rather than a module with an error in it
        raise
    fn = _function(module, function)
    return None if fn is None else _component(name, fn, path)


def _from_file(name: str) -> Component:
    """Load a component from `file.py:function`; the file may import its neighbours."""
    text, _, function = name.rpartition(":")
    path = expand(text)
    if not path.is_file():
        raise ComponentNotFoundError(f"there is no file '{text}' for the component '{name}'")
    module = _load_file(path.resolve(), name)
    fn = _function(module, function)
    if fn is None:
        there = ", ".join(sorted(_functions(module))) or "no components"
        raise ComponentNotFoundError(f"'{text}' has no function '{function}'; it has {there}")
    return _component(name, fn, text)


def _load_file(path: Path, name: str) -> ModuleType:
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    _also_from(path.parent)
    _welcome()
    module_name = f"holdfast_component_{path.stem}"
    spec = spec_from_loader(module_name, SourceFileLoader(module_name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and text annotations look their module up
    try:
        spec.loader.exec_module(module)
    except BROKEN as error:
        del sys.modules[module_name]
        raise plugins.PluginBrokenError(f"the file of '{name}' cannot be loaded: {_error(error)}") from error
    return module


# -- small things ---------------------------------------------------------------------------------------------------


def _component(name: str, fn: Callable[..., Any], source: str) -> Component:
    return Component(name, (inspect.getdoc(fn) or "").partition("\n")[0], source, lambda: fn)


def _function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    found = getattr(module, name, None)
    return found if inspect.isfunction(found) else None


def _import(name: str, said: str) -> ModuleType:
    _welcome()
    try:
        return importlib.import_module(name)
    except BROKEN as error:
        raise plugins.PluginBrokenError(f"the module {name} of '{said}' cannot be imported: {_error(error)}") from error


def _import_or_report(name: str, said: str, report: Report) -> ModuleType | None:
    _welcome()
    try:
        return importlib.import_module(name)
    except BROKEN as error:
        report(Problem(said, f"the module {name} cannot be imported: {_error(error)}"))
        return None


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _also_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@cache
def _welcome() -> None:
    """Let modules that were written for TorchX find ours if it is not installed."""
    from holdfast.compat import torchx_where_missing

    torchx_where_missing()


def _ignore(problem: Problem) -> None:
    """Leave it to `problems()` to tell."""


def _tell(found: list[Problem]) -> None:
    from holdfast.facts import facts

    for problem in found:
        facts.warn("plugin_broken", str(problem), plugin=problem.subject, group=GROUPS[0])


def _not_found(name: str) -> str:
    """Say that there is no such component, and what may have been meant."""
    from difflib import get_close_matches

    scan = _scan()
    said = f"there is no component '{name}'"
    prefix, _, function = name.rpartition(".")
    if scan.hides_builtins and prefix in BUILTINS and any(each.name == name for each in _read_builtins(prefix, prefix)):
        return (
            f"{said}: registered components hide the builtin ones; call it {ROOT}.{name}, or add the entry point "
            f"`holdfast = {ROOT}` (for names like holdfast.{name}) or `_ = {ROOT}` (for {name}) to the group {ROOT}"
        )
    same = [each for each in scan.components if function and each.rpartition(".")[2] == function]
    close = same[:3] or get_close_matches(name, scan.components, n=1)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; `holdfast builtins` lists them"
    broken = f" ({len(scan.problems)} problems with plugins: see `holdfast plugins`)" if scan.problems else ""
    return f"{said}{hint}{broken}"
