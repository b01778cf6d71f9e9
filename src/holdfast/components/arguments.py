"""From a command line to an app: flags by a component's signature. Pure.

- A flag is `--name value` or `--name=value`, with underscores or dashes; `-n value`, `-n=value` or `-nvalue` for short
  forms. A bool is `--name`, `--no-name`, `--name=yes`, or `--name True`. Lists and dictionaries given again add up; of
  anything else the last one counts.
- The word after a flag is its value, even with a dash in front, unless it is a flag of the same component.
- With `*args`, everything from the first word that belongs to no flag, and everything after `--`, is passed through.
  A `--` separates nothing, and is left out, where there are no `*args` or while required flags are still missing.
- What was typed beats `config`, which beats `defaults`, which beat the signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.components.errors import HelpRequested
from holdfast.components.signature import Parameter, Signature, read_signature
from holdfast.components.types import NO, YES, WrongValueError
from holdfast.errors import ComponentValidationError, UsageError
from holdfast.specs.app import AppDef

HELP = ("--help", "-h")


def materialize_appdef(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str] | Mapping[str, Any],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> AppDef:
    """Call a component with what was typed, or with a dictionary of values, and return its app.

    Raises `UsageError` if a value does not fit, and `ComponentValidationError` where the function does not.
    """
    args, kwargs = parse(cmpnt_fn, cmpnt_args, cmpnt_defaults, config, name)
    app = cmpnt_fn(*args, **kwargs)
    if not isinstance(app, AppDef):
        raise ComponentValidationError(f"the component '{name or cmpnt_fn.__name__}' returned {_what(app)}")
    return app


def parse(
    fn: Callable[..., Any],
    argv: Sequence[str] | Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments with which to call a component."""
    return _call(*gather(fn, argv, defaults, config, name or fn.__name__))


def gather(
    fn: Callable[..., Any],
    argv: Sequence[str] | Mapping[str, Any],
    defaults: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
    name: str,
) -> tuple[Signature, dict[str, Any]]:
    """Return a component's signature, and what is given for it, by parameter."""
    signature = read_signature(fn)
    if signature.problems:
        reasons = "; ".join(reason for _, reason in signature.problems)
        raise ComponentValidationError(f"'{name}' cannot be called as a component: {reasons}")
    given = _take(signature, defaults or {}, name) | _take(signature, config or {}, name)
    if isinstance(argv, Mapping):
        given |= _take(signature, argv, name)
    else:
        try:
            given |= _Reader(signature, name, given).read(list(argv))
        except _HelpWanted:
            raise HelpRequested(help_text(fn, name)) from None
    missing = [each.flag for each in signature.parameters.values() if each.required and each.name not in given]
    if missing:
        raise UsageError(f"{name} needs {_listed(missing)}; --help shows what each is")
    return signature, given


def help_text(fn: Callable[..., Any], name: str | None = None, width: int = 80) -> str:
    """Describe a component and every one of its flags: type, default, whether it is required."""
    from holdfast.components.help import render  # the docstring parser is needed for nothing else

    return render(fn, name or fn.__name__, width)


class _HelpWanted(Exception):
    """The flag for help was found where flags are read."""


class _Reader:
    """Reads one command line, word by word."""

    def __init__(self, signature: Signature, name: str, given: Mapping[str, Any]) -> None:
        self._signature = signature
        self._name = name
        self._known = given
        self._flags = signature.by_flag()
        self._found: dict[str, Any] = {}
        self._words: list[str] = []

    def read(self, words: list[str]) -> dict[str, Any]:
        """Return what was typed, by parameter; `*args` under their own name."""
        self._words = words
        separated = False
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                if separated or not self._separates_nothing():
                    self._pass_through(self._words, word)
                    break
                separated = True
            elif word.startswith("-") and word != "-" and not _is_number(word):
                self._read_flag(word)
            else:
                self._pass_through([word, *self._words], word)
                break
        return self._found

    def _separates_nothing(self) -> bool:
        """Whether a `--` is only there out of habit: the component could not be called with the rest passed through."""
        return self._signature.rest is None or any(
            each.required and each.name not in self._found and each.name not in self._known
            for each in self._signature.parameters.values()
        )

    def _pass_through(self, words: list[str], first: str) -> None:
        if self._signature.rest is None:
            raise UsageError(f"{self._name} takes no argument '{first}'; every value needs a flag, as in --name value")
        name, kind = self._signature.rest
        try:
            self._found[name] = [kind.read(word) for word in words]
        except WrongValueError as mistake:
            raise UsageError(f"{name}: {mistake}") from None

    def _read_flag(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        parameter = self._flags.get(_normal(flag))
        if parameter is not None:
            self._store(parameter, value if equals else self._value_of(parameter, flag), flag)
        elif (negated := self._negated(flag)) is not None and not equals:
            self._store(negated, "false", flag)
        elif word in HELP:
            raise _HelpWanted
        elif (short := self._flags.get(word[:2])) is not None and not word.startswith("--"):
            self._store(short, word[2:], word[:2])  # -j2x4
        else:
            raise UsageError(self._unknown(flag))

    def _value_of(self, parameter: Parameter, flag: str) -> str:
        """Take the next word, unless it cannot be the value; a bare bool is true."""
        following = self._words[0] if self._words else None
        if parameter.is_bool:
            return self._words.pop(0) if following is not None and following.lower() in YES | NO else "true"
        if following is None or following == "--" or self._is_flag(following):
            raise UsageError(f"{flag} needs a value: {parameter.type.name}")
        return self._words.pop(0)

    def _is_flag(self, word: str) -> bool:
        flag = word.partition("=")[0]
        return _normal(flag) in self._flags or self._negated(flag) is not None or word == "--help"

    def _negated(self, flag: str) -> Parameter | None:
        flag = _normal(flag)
        parameter = self._flags.get(f"--{flag[5:]}") if flag.startswith("--no_") else None
        return parameter if parameter is not None and parameter.is_bool else None

    def _store(self, parameter: Parameter, text: str, flag: str) -> None:
        try:
            value = parameter.type.read(text)
        except WrongValueError as mistake:
            raise UsageError(_complaint(flag, text, parameter, mistake)) from None
        if parameter.type.adds_up and parameter.name in self._found:
            value = parameter.type.add(self._found[parameter.name], value)
        self._found[parameter.name] = value

    def _unknown(self, flag: str) -> str:
        hint = _alike(_normal(flag).lstrip("-"), list(self._signature.parameters), "--")
        if not hint:
            rest = self._signature.rest
            hint = f"; write -- before what is meant for {rest[0]}" if rest is not None else "; --help shows its flags"
        return f"{self._name} has no flag {flag}{hint}"


def _take(signature: Signature, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Check values that came as data; dashes in names are fine."""
    taken = {}
    for key, value in values.items():
        known = key.replace("-", "_")
        rest = signature.rest
        if rest is not None and known == rest[0]:
            taken[known] = _take_rest(rest, value)
        elif known not in signature.parameters:
            raise UsageError(f"{name} has no argument '{key}'{_alike(known, list(signature.parameters))}")
        else:
            parameter = signature.parameters[known]
            taken[known] = parameter.default if _is_default_none(parameter, value) else _taken(parameter, value)
    return taken


def _taken(parameter: Parameter, value: Any) -> Any:
    try:
        return parameter.type.take(value)
    except WrongValueError as mistake:
        raise UsageError(_complaint(parameter.flag, value, parameter, mistake)) from None


def _is_default_none(parameter: Parameter, value: Any) -> bool:
    """Whether None is fine although the type does not say so: `x: str = None`."""
    return value is None and parameter.default is None


def _take_rest(rest: tuple[str, Any], value: Any) -> list[Any]:
    name, kind = rest
    if isinstance(value, str):
        import shlex  # few settings need it

        value = shlex.split(value)
    if not isinstance(value, Sequence):
        raise UsageError(f"{name} must be a list, not {value!r}")
    try:
        return [kind.take(each) for each in value]
    except WrongValueError as mistake:
        raise UsageError(f"{name}: {mistake}") from None


def _call(signature: Signature, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Lay the values out as the function takes them."""
    parameters = signature.parameters.values()
    places = [given.get(each.name, each.default) for each in parameters if each.by_place]
    rest = given.get(signature.rest[0], []) if signature.rest is not None else []
    named = {each.name: given[each.name] for each in parameters if not each.by_place and each.name in given}
    return (*places, *rest), named


def _complaint(flag: str, given: object, parameter: Parameter, mistake: WrongValueError) -> str:
    """Name the flag, the value and the type, and the piece that is wrong where it is only a piece."""
    wanted = parameter.type.name
    inner = "" if mistake.piece == given and mistake.wanted == wanted else f": {mistake}"
    return f"{flag} {given!r} must be {wanted}{inner}"


def _alike(word: str, known: list[str], dashes: str = "") -> str:
    from difflib import get_close_matches  # only a mistake needs it

    close = get_close_matches(word, known, n=1)
    return f"; did you mean {dashes}{close[0]}?" if close else ""


def _normal(flag: str) -> str:
    """Write a long flag as the signature does."""
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


def _is_number(word: str) -> bool:
    return word[1:2].isdigit() or word[1:2] == "."


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _what(value: object) -> str:
    """Say what came instead of an app; another class of that name is that of an installed TorchX."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if type(value).__name__ == AppDef.__name__:
        return f"a {kind}, not ours: import from holdfast.specs, or call holdfast.compat.install() before"
    return f"{value if value is None else f'a {kind}'}, not an AppDef"
