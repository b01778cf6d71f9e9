"""Reads the public surface of a family of names out of its modules, and writes it as a table.

    python tests/compat/surface/read.py torch           # where the real package is installed: writes torch.json
    python tests/compat/surface/read.py torch --ours    # prints the same of ours, through the alias

A table holds, for every module, its public names: those in `__all__`, those defined there, and those taken from another
module of the family; plus the private ones that `families.py` lists. For each it holds what kind it is, the arguments
with their defaults, the bases of a class and the members that it defines, the value of a constant; for a name taken
from another module, only which one. Needs nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import sys
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from families import FAMILIES, Family, table_path

Entry = dict[str, Any]
PLAIN = (str, int, float, bool, type(None), bytes)
#: Special methods that are part of what a class promises.
SPECIAL = ("__call__", "__enter__", "__exit__", "__iter__", "__next__", "__len__", "__getitem__", "__contains__")


def module_names(family: Family) -> list[str]:
    """All modules of a family, by walking its packages."""
    found = list(family.roots)
    for root in family.roots:
        path = getattr(importlib.import_module(root), "__path__", None)
        if path is not None:
            found += [each.name for each in pkgutil.walk_packages(path, f"{root}.")]
    return sorted(name for name in found if not name.startswith(family.skip or ("\0",)))


def read_module(family: Family, name: str) -> dict[str, Entry]:
    """The entries of a module: all its public names."""
    module = importlib.import_module(name)
    entries: dict[str, Entry] = {}
    for each in sorted(public(family, module, name)):
        value = getattr(module, each)
        home = str(getattr(value, "__module__", name)) if inspect.isclass(value) or inspect.isroutine(value) else name
        known = getattr(value, "__name__", each)
        if home != name and home.startswith(family.roots) and hasattr(importlib.import_module(home), known):
            entries[each] = {"kind": "same", "as": f"{home}:{known}"}
        else:
            entries[each] = describe(family, value, f"{name}.{each}", own=True)
    return entries


def read_kept(family: Family, name: str, kept: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries of a module of ours: those that a kept table has too."""
    module = importlib.import_module(name)
    entries: dict[str, Entry] = {}
    for each, theirs in kept.items():
        if not hasattr(module, each):
            continue
        value = getattr(module, each)
        if theirs["kind"] == "same" and value is look_up(theirs["as"]):
            entries[each] = theirs
        else:
            entries[each] = describe(family, value, f"{name}.{each}", own=False)
    return entries


def look_up(path: str) -> Any:
    """What is behind `module:name`, or nothing."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name, look_up)
    except ImportError:
        return look_up


def public(family: Family, module: types.ModuleType, name: str) -> list[str]:
    """The names of a module that programs may use."""
    listed = set(getattr(module, "__all__", ()))
    private = {each.rpartition(".")[2] for each in family.private if each.rpartition(".")[0] == name}
    names = [each for each in vars(module) if each in listed | private or not each.startswith("_")]
    names = [each for each in names if f"{name}.{each}" not in family.left_out]
    return [each for each in names if each in listed | private or counts(family, getattr(module, each), each.isupper())]


def counts(family: Family, value: Any, is_upper: bool) -> bool:
    """Whether an unlisted name is of the family: defined in it, or a constant."""
    if isinstance(value, types.ModuleType | typing.TypeVar | bool):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(getattr(value, "__module__", "")).startswith(family.roots)
    return is_upper and is_plain(value)


def is_plain(value: Any) -> bool:
    """Whether a value says everything by its repr."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(is_plain(each) for each in value)
    if isinstance(value, Mapping):
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    return isinstance(value, PLAIN)


def describe(family: Family, value: Any, path: str, *, own: bool) -> Entry:
    """One name: its kind, and what its users rely on."""
    if inspect.isclass(value):
        return describe_class(family, value, path, own=own)
    if callable(value) and (inspect.isroutine(value) or hasattr(value, "__wrapped__")):
        return {"kind": "function", "arguments": arguments(value)}
    if isinstance(value, types.ModuleType):
        return {"kind": "module"}
    if is_plain(value) and value != {}:
        # A set has another order in every process.
        text = f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, set) and value else repr(value)
        return {"kind": "constant", "value": text}
    return {"kind": "value", "type": type(value).__name__}


def describe_class(family: Family, cls: type, path: str, *, own: bool) -> Entry:
    """A class: bases, constructor, members."""
    bases = [each.__name__ for each in cls.__mro__[1:] if each.__name__ not in ("object", "Generic", "ABC", "Protocol")]
    entry: Entry = {"kind": "class", "bases": bases}
    found = members(family, cls, path, own=own)
    if issubclass(cls, enum.Enum):
        return {**entry, "values": {each.name: repr(each.value) for each in cls}, "members": found}
    return {**entry, "arguments": arguments(cls), "members": found}


def members(family: Family, cls: type, path: str, *, own: bool) -> dict[str, Entry]:
    """The public members of a class, all or only those that it defines itself, and the private ones that count."""
    private = {each.rpartition(".")[2] for each in family.private if each.rpartition(".")[0] == path}
    found: dict[str, Entry] = {}
    for each in inspect.classify_class_attrs(cls):
        home = getattr(each.defining_class, "__module__", "")
        is_public = not each.name.startswith("_") or each.name in SPECIAL
        if (
            not (is_public or each.name in private)
            or not is_of(family, home)
            or (own and each.defining_class is not cls)
        ):
            continue
        if each.kind == "property" or inspect.isdatadescriptor(each.object):
            found[each.name] = {"kind": "property"}
        elif "method" in each.kind:
            found[each.name] = {"kind": each.kind, "arguments": arguments(getattr(cls, each.name))}
        elif not isinstance(each.object, enum.Enum):
            found[each.name] = (
                describe(family, each.object, "", own=own) if is_plain(each.object) else {"kind": "value"}
            )
    if not own and dataclasses.is_dataclass(cls):
        found = {**{each.name: {"kind": "property"} for each in dataclasses.fields(cls)}, **found}
    return dict(sorted(found.items()))


def is_of(family: Family, module: str) -> bool:
    """Whether a module is one of the family's, or of ours that stand behind them."""
    return module.startswith((*family.roots, "holdfast"))


def arguments(value: Any) -> list[list[str | None]] | None:
    """Name, kind and default of each argument, or nothing where Python cannot tell."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return None
    return [[each.name, each.kind.name.lower(), default(each)] for each in signature.parameters.values()]


def default(parameter: inspect.Parameter) -> str | None:
    """The default of an argument, so that it can be compared."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return None
    if inspect.isclass(value):
        return value.__name__
    text = "<function>" if inspect.isroutine(value) else repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text or text.startswith("<factory") else text


def read_real(name: str) -> Entry:
    """The table of the installed package."""
    family = FAMILIES[name]
    modules: Entry = {}
    for each in module_names(family):
        modules[each] = read_module(family, each)
    version = importlib.import_module(family.package).__version__.partition("+")[0]
    return {"package": family.package, "version": version, "modules": modules}


def read_ours(name: str) -> Entry:
    """What stands behind the names of the kept table: the same table of ours; a missing module says why."""
    from holdfast import compat

    compat.install(name)
    kept = json.loads(table_path(name).read_text())
    modules: Entry = {}
    for each, names in kept["modules"].items():
        try:
            modules[each] = read_kept(FAMILIES[name], each, names)
        except ImportError as error:
            modules[each] = str(error)
    return {"modules": modules}


def main() -> None:
    """Write the table of the real one, or print ours."""
    warnings.simplefilter("ignore")
    name = sys.argv[1]
    if "--ours" in sys.argv:
        print(json.dumps(read_ours(name)))
        return
    table_path(name).write_text(in_lines(read_real(name)))


def in_lines(table: Entry) -> str:
    """The table as JSON, with one name on a line, so that a change of it can be read."""
    modules = ",\n".join(
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items())
        + "\n}"
        for module, names in table["modules"].items()
    )
    head = f'"package": {json.dumps(table["package"])},\n"version": {json.dumps(table["version"])},\n'
    return f'{{\n{head}"modules": {{\n{modules}\n}}}}\n'


if __name__ == "__main__":
    main()
