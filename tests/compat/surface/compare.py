"""Compares the surface of others with ours: what is missing, what differs. Pure.

More than they have is fine: further arguments with defaults behind theirs, further members, other bases beside theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Entry = Mapping[str, Any]
POSITIONAL = ("positional_only", "positional_or_keyword")


def compare(theirs: Entry, ours: Entry) -> dict[str, str]:
    """For every name that is missing or different: its path, and what is the matter with it."""
    found: dict[str, str] = {}
    for module, names in theirs["modules"].items():
        behind = ours["modules"].get(module, "absent")
        if isinstance(behind, str):
            found[module] = f"absent: {behind}"
            continue
        for name, entry in names.items():
            if name not in behind:
                found[f"{module}.{name}"] = "absent"
            else:
                for path, what in differences(f"{module}.{name}", entry, behind[name]):
                    found[path] = f"{found[path]}; {what}" if path in found else what
    return found


def differences(path: str, theirs: Entry, ours: Entry) -> Iterator[tuple[str, str]]:
    """What differs in one name, by its path."""
    if theirs["kind"] != ours["kind"]:
        where = f" {theirs['as'].replace(':', '.')}" if theirs["kind"] == "same" else ""
        yield path, f"is a {ours['kind']}, not {'the' if where else 'a'} {theirs['kind']}{where}"
        return
    if "value" in theirs and theirs["value"] != ours["value"]:
        yield path, f"is {ours['value']}, not {theirs['value']}"
    for key, value in theirs.get("values", {}).items():
        if ours["values"].get(key) != value:
            yield f"{path}.{key}", f"is {ours['values'].get(key, 'absent')}, not {value}"
    lost = [base for base in theirs.get("bases", ()) if base not in ours.get("bases", ())]
    if lost:
        yield path, f"does not derive from {', '.join(lost)}"
    if theirs.get("arguments") is not None and ours.get("arguments") is not None:
        for sentence in arguments(theirs["arguments"], ours["arguments"]):
            yield path, sentence
    for name, member in theirs.get("members", {}).items():
        if name not in ours.get("members", {}):
            yield f"{path}.{name}", "absent"
        else:
            yield from differences(f"{path}.{name}", member, ours["members"][name])


def arguments(theirs: list[Any], ours: list[Any]) -> Iterator[str]:
    """What a call written for theirs would meet with ours."""
    have = {name: (kind, default) for name, kind, default in ours}
    anything = {kind for _, kind, _ in ours}
    for name, kind, default in theirs:
        if kind.startswith("var_"):
            if kind not in anything:
                yield f"takes no {name}"
        elif name not in have:
            if "var_keyword" not in anything or "var_positional" not in anything:
                yield f"has no argument {name}"
        elif default is not None and have[name][1] != default:
            yield f"the default of {name} is {have[name][1]}, not {default}"
    first = [name for name, kind, _ in theirs if kind in POSITIONAL]
    second = [name for name, kind, _ in ours if kind in POSITIONAL][: len(first)]
    if first != second and set(first) <= set(have) and "var_positional" not in anything:
        yield f"the order of arguments is {', '.join(second)}, not {', '.join(first)}"
    needed = [name for name, kind, default in ours if default is None and not kind.startswith("var_")]
    known = {name for name, _, _ in theirs}
    if more := [name for name in needed if name not in known]:
        yield f"needs {', '.join(more)} as well"
