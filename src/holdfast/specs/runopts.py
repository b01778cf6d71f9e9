"""Run options: what the user can choose for one run on a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GenericAlias, NoneType
from typing import Any, Literal, get_args, get_origin

from holdfast.errors import InvalidRunConfigError, UsageError, WrongDefaultError
from holdfast.facts import facts
from holdfast.specs import cfg as grammar
from holdfast.specs.cfg import CfgVal

__all__ = ["CfgVal", "InvalidRunConfigError", "get_type_name", "runopt", "runopts"]


def get_type_name(tp: Any) -> str:
    """Name a type: a class by its own name, without what it holds, and one of `typing` as it is written."""
    return str(tp.__name__ if isinstance(tp, type | GenericAlias) else tp)


class _Resolved(dict[str, CfgVal]):
    """Options whose unknown keys have been reported."""

    __slots__ = ()


@dataclass
class runopt:  # noqa: N801 - the name that schedulers are written with
    """One option: what it is for, its type, and its default.

    Types are str, int, float, bool, list[str], dict[str, str], and Literal["a", "b"] for a choice of words;
    Optional[...] of these is the same.
    """

    default: CfgVal
    opt_type: Any
    is_required: bool
    help: str

    @property
    def is_type_list_of_str(self) -> bool:
        """Whether it holds a list."""
        return get_origin(_bare(self.opt_type)) is list

    @property
    def is_type_dict_of_str(self) -> bool:
        """Whether it holds a mapping."""
        return get_origin(_bare(self.opt_type)) is dict

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values; empty if all values of the type are allowed."""
        wanted = _bare(self.opt_type)
        return get_args(wanted) if get_origin(wanted) is Literal else ()

    @property
    def type_name(self) -> str:
        """The type as a user would write it."""
        wanted = _bare(self.opt_type)
        if self.choices:
            return " or ".join(map(repr, self.choices))
        return wanted.__name__ if get_origin(wanted) is None else str(wanted).replace("typing.", "").lower()

    def cast_to_type(self, value: str) -> CfgVal:
        """Read a value from text; raises ValueError that says what is wrong."""
        wanted = _bare(self.opt_type)
        if self.is_type_list_of_str:
            return grammar.to_list(value)
        if self.is_type_dict_of_str:
            return grammar.to_dict(value)
        text = grammar.unquote(value)
        if wanted is bool:
            return grammar.to_bool(text)
        if wanted in (int, float):
            try:
                return wanted(text)  # type: ignore[no-any-return]
            except ValueError:
                raise ValueError(f"'{text}' is not a number of type {self.type_name}") from None
        if self.choices and text not in self.choices:
            raise ValueError(f"'{text}' is not one of them")
        return text

    def accepts(self, value: Any) -> bool:
        """Whether a value is of the option's type; a whole number also counts as a float."""
        wanted = _bare(self.opt_type)
        if self.choices:
            return value in self.choices
        if self.is_type_list_of_str:
            return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if self.is_type_dict_of_str:
            return isinstance(value, dict) and all(isinstance(item, str) for pair in value.items() for item in pair)
        if isinstance(value, bool):  # which Python takes for a number
            return wanted is bool
        return isinstance(value, int | float if wanted is float else wanted)


class runopts:  # noqa: N801 - the name that schedulers are written with
    """The options of one scheduler, in the order in which they were added.

    opts = runopts()
    opts.add("queue", type_=str, help="where the job waits", required=True)
    opts.add("tags", type_=list[str], help="words to find it by")
    opts.resolve(opts.cfg_from_str("queue=gpu,tags=a,b"))   # {"queue": "gpu", "tags": ["a", "b"]}
    """

    def __init__(self) -> None:
        self._opts: dict[str, runopt] = {}

    def add(self, cfg_key: str, type_: Any, help: str, default: CfgVal = None, required: bool = False) -> None:  # noqa: A002
        """Add an option; one that is required has no default."""
        option = runopt(default, type_, required, help)
        if required and default is not None:
            raise UsageError(f"the run option '{cfg_key}' is required, so it cannot have the default {default!r}")
        if default not in (None, [], {}) and not option.accepts(default):  # `[]` and `{}` mean the same to many
            raise WrongDefaultError(
                f"the default {default!r} of the run option '{cfg_key}' is not of type {option.type_name}"
            )
        self._opts[cfg_key] = option

    def get(self, name: str) -> runopt | None:
        """Return the option of this name, or None."""
        return self._opts.get(name)

    def update(self, other: runopts) -> None:
        """Add the options of another set; they win over those of the same name."""
        self._opts.update(other._opts)

    @staticmethod
    def is_type(obj: CfgVal, tp: Any) -> bool:
        """Whether a value is of a type that an option may have."""
        return runopt(None, tp, False, "").accepts(obj)

    def resolve(self, cfg: Mapping[str, CfgVal]) -> dict[str, CfgVal]:
        """Check the values and fill in defaults; keys that are not known pass through with a warning.

        Raises `InvalidRunConfigError` if a value is missing or of another type.
        """
        if not isinstance(cfg, _Resolved):
            self._warn_of_unknown(cfg)
        resolved = _Resolved(cfg)
        for key, option in self._opts.items():
            value = resolved.get(key)
            if value is None:
                if option.is_required:
                    raise InvalidRunConfigError(
                        f"the run option '{key}' is required: give it as {key}={_example(option)} ({option.help})",
                        key,
                        cfg,
                    )
                resolved[key] = option.default
            elif value not in ([], {}) and not option.accepts(value):
                raise InvalidRunConfigError(
                    f"the run option '{key}' is {value!r} ({type(value).__name__}) but must be {option.type_name}",
                    key,
                    cfg,
                )
        return resolved

    def cfg_from_str(self, cfg_str: str) -> dict[str, CfgVal]:
        """Read options from one line, as in `queue=gpu,tags=a,b`; those that are not known stay text.

        Raises `InvalidRunConfigError` if a value does not fit.
        """
        try:
            pairs = grammar.split_pairs(cfg_str)
        except ValueError as error:
            raise InvalidRunConfigError(
                f"{error}: write run options as key=value, separated by commas", cfg_str, cfg_str
            ) from None
        found: dict[str, CfgVal] = {}
        for key, text in pairs:
            option = self._opts.get(key)
            try:
                found[key] = grammar.unquote(text) if option is None else option.cast_to_type(text)
            except ValueError as error:
                assert option is not None
                raise InvalidRunConfigError(
                    f"the run option '{key}' must be {option.type_name}, and {error}", key, cfg_str
                ) from None
        return found

    def cfg_from_json_repr(self, json_repr: str) -> dict[str, CfgVal]:
        """Read options from a JSON object; numbers and words are turned into the option's type where they can be."""
        import json  # few need it

        try:
            data = json.loads(json_repr)
        except ValueError as error:
            raise InvalidRunConfigError(f"the run options are not JSON: {error}", "", json_repr) from None
        if not isinstance(data, dict):
            raise InvalidRunConfigError(
                f"the run options must be a JSON object, not {type(data).__name__}", "", json_repr
            )
        return {key: self._from_json(key, value, data) for key, value in data.items()}

    def _from_json(self, key: str, value: Any, cfg: dict[str, Any]) -> CfgVal:
        option = self._opts.get(key)
        if option is None or value is None or option.accepts(value):
            return value  # type: ignore[no-any-return]
        if option.is_type_list_of_str and isinstance(value, list):
            return [str(item) for item in value]
        if option.is_type_dict_of_str and isinstance(value, dict):
            return {str(name): str(item) for name, item in value.items()}
        try:
            return option.cast_to_type(str(value))
        except ValueError as error:
            raise InvalidRunConfigError(
                f"the run option '{key}' must be {option.type_name}, and {error}", key, cfg
            ) from None

    def _warn_of_unknown(self, cfg: Mapping[str, CfgVal]) -> None:
        for key in cfg:
            if key not in self._opts:
                hint = _close_match(key, self._opts)
                meant = f"; did you mean '{hint}'?" if hint else "; `holdfast runopts` lists the known ones"
                facts.warn("run_option_unknown", f"the run option '{key}' is not known here{meant}", option=key)

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        return iter(self._opts.items())

    def __len__(self) -> int:
        return len(self._opts)

    def __contains__(self, name: object) -> bool:
        return name in self._opts

    def __repr__(self) -> str:
        if not self._opts:
            return "no run options"
        required = [pair for pair in self if pair[1].is_required]
        optional = [pair for pair in self if not pair[1].is_required]
        usage = ",".join([_usage(*pair) for pair in required] + [f"[{_usage(*pair)}]" for pair in optional])
        lines = ["usage:", f"    {usage}"]
        for title, pairs in (("required", required), ("optional", optional)):
            if pairs:
                lines += ["", f"{title}:", *(line for pair in pairs for line in _describe(*pair))]
        return "\n".join(lines)


def _usage(key: str, option: runopt) -> str:
    return f"{key}={_example(option)}"


def _example(option: runopt) -> str:
    if option.choices:
        return "|".join(option.choices)
    if option.is_type_list_of_str:
        return "A,B"
    return "A:1,B:2" if option.is_type_dict_of_str else str(_bare(option.opt_type).__name__).upper()


def _describe(key: str, option: runopt) -> list[str]:
    default = "" if option.is_required else f", default {option.default!r}"
    return [f"    {key} ({option.type_name}{default})", f"        {option.help}"]


def _bare(wanted: Any) -> Any:
    """The type without None."""
    args = get_args(wanted)
    if NoneType not in args:
        return wanted
    return next(each for each in args if each is not NoneType)


def _close_match(word: str, known: Mapping[str, Any]) -> str | None:
    from difflib import get_close_matches  # only a mistake needs it

    return next(iter(get_close_matches(word, known, n=1)), None)
