"""Run options as a dataclass: types, defaults and help in one place, and values with names in code.

    @dataclass
    class MyOpts(StructuredOpts):
        queue: str
        '''Where the job waits.'''

        mail_user: str | None = field(default=None, metadata={"cfg_key": "mail-user"})
        '''Who is told.'''

    MyOpts.as_runopts()                                  # what `_run_opts` returns
    MyOpts.from_cfg({"queue": "gpu"}).mail_user          # in `_submit_dryrun`

A field without a default is required. One whose type is such a class itself gives options with a dot, `k8s.context`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from holdfast.errors import InvalidRunConfigError
from holdfast.specs.cfg import CfgVal
from holdfast.specs.runopts import runopts

Self = TypeVar("Self", bound="StructuredOpts")


@dataclasses.dataclass
class StructuredOpts(Mapping[str, CfgVal]):
    """The base of a dataclass of run options; an object of it is also a mapping, by the keys that users write."""

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the options that users may set."""
        options = runopts()
        types_of, said = typing.get_type_hints(cls), _docstrings(cls)
        for field in _fields(cls):
            wanted = types_of[field.name]
            if (inner := _nested(wanted)) is not None:
                for key, option in inner.as_runopts():
                    options.add(f"{_key(field)}.{key}", option.opt_type, option.help, option.default)
                continue
            default = _default(field)
            required = default is dataclasses.MISSING
            text = said.get(field.name, field.name)
            options.add(_key(field), wanted, text, None if required else default, required)
        return options

    @classmethod
    def from_cfg(cls: type[Self], cfg: Mapping[str, CfgVal]) -> Self:
        """Make an object of run options; keys may be written in camelCase, and unknown ones are left alone."""
        types_of = typing.get_type_hints(cls)
        found: dict[str, Any] = {}
        for field in _fields(cls):
            key, inner = _key(field), _nested(types_of[field.name])
            if inner is not None:
                below = {name[len(key) + 1 :]: value for name, value in cfg.items() if name.startswith(f"{key}.")}
                if below or _default(field) is dataclasses.MISSING:
                    found[field.name] = inner.from_cfg(below)
                continue
            given = [name for name in (key, field.name, snake_to_camel(field.name)) if cfg.get(name) is not None]
            if given:
                found[field.name] = cfg[given[0]]
            elif _default(field) is dataclasses.MISSING:
                raise InvalidRunConfigError(f"the run option '{key}' is required", key, cfg)
        return cls(**found)

    def __getitem__(self, key: str) -> CfgVal:
        head, dot, rest = key.partition(".")
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if key == _key(field) and not isinstance(value, StructuredOpts):
                return value  # type: ignore[no-any-return]
            if dot and head == _key(field) and isinstance(value, StructuredOpts):
                return value[rest]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, StructuredOpts):
                yield from (f"{_key(field)}.{key}" for key in value)
            else:
                yield _key(field)

    def __len__(self) -> int:
        return len(list(iter(self)))


def snake_to_camel(name: str) -> str:
    """Write `num_retries` as `numRetries`."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _fields(cls: type[StructuredOpts]) -> list[dataclasses.Field[Any]]:
    """The fields that are options; those with an underscore are the scheduler's own."""
    return [field for field in dataclasses.fields(cls) if not field.name.startswith("_")]


def _key(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("cfg_key", field.name))


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or that it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _nested(wanted: Any) -> type[StructuredOpts] | None:
    """The class of options that a field holds, if it does."""
    some = [wanted]
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        some = [each for each in typing.get_args(wanted) if each is not types.NoneType]
    only = some[0] if len(some) == 1 else None
    return only if isinstance(only, type) and issubclass(only, StructuredOpts) else None


def _docstrings(cls: type[StructuredOpts]) -> dict[str, str]:
    """The text that stands below each field in the source of a class and those it derives from."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[: cls.__mro__.index(StructuredOpts)]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        except (OSError, TypeError, SyntaxError, IndentationError):
            continue  # made without a file
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return found
