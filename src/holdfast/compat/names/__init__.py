"""Which of our modules is behind each foreign name: one table for each family of names. Data only. Pure.

A table gives for each importable name:

- the name of a module of ours: the alias is the same module;
- a `View`: a module that shows the names of several of ours, where others keep in one file what we keep in several,
  or call it differently.

A name that is not listed is looked for below its nearest listed ancestor, if that is a module of ours:
`torchx.components.dist` is `holdfast.components.dist`. A name that has listed names below it is a package.
Modules of ours that only adapt shapes live in `holdfast.compat.elastic` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module


@dataclass(frozen=True, slots=True)
class View:
    """One module made of several of ours: a name is the first one's that has it, or what `names` says (`module:name`).

    A name that is set through the view is set in every one of these modules that has it.
    """

    modules: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""


Table = Mapping[str, str | View]

#: The families, and the module here that holds the table of each.
FAMILIES: Mapping[str, str] = {
    "torch": "torch_elastic",  # torch.distributed.elastic and its launchers
    "torchx": "torchx",
    "torchelastic": "torchelastic",  # the first one, of 2019
}
#: Those whose names belong to packages that may be installed.
OF_OTHERS = ("torch", "torchx")


def table(family: str) -> Table:
    """The table of a family; only this one is loaded."""
    found: Table = import_module(f"{__name__}.{FAMILIES[family]}").MODULES
    return found


def view(*modules: str, **names: str) -> View:
    """A view of modules, with some names that are called differently there."""
    return View(modules, names)
