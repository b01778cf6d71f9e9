"""Parses words as torchrun does, with Python's argparse, and writes them in full. Pure.

- A flag may be cut short as long as what is left means only one flag. Dashes and underscores mean the same.
- A value that begins with a dash is written after an equals sign, unless it is a negative number.
- The first word that is no flag is the script; all that follows belongs to the script.
- One `--` is dropped: the one before the script, or else the one right behind it. All others are the script's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import UsageError

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")


class Flag(NamedTuple):
    """One flag: how it is written, whether a value follows, and how soon a prefix may mean it."""

    name: str
    takes_value: bool
    #: A prefix means a flag of a higher tier only where it fits none of a lower one.
    tier: int = 0


def arrange(words: list[str], flags: Mapping[str, Flag], *, keep_dashes: bool = False) -> list[str]:
    """Return flags in full, each followed by its value, then `--`, the script and its arguments.

    From a flag on that is not known everything is left as it is. With `keep_dashes` a `--` behind the script stays.
    Raises `UsageError` if a prefix means several
    flags or a value is missing.
    """
    done: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return [*done, *words[place:]]
        if not _is_flag(word, flags):
            rest = words[place + 1 :]
            return [*done, "--", word, *(rest[1:] if rest[:1] == ["--"] and not keep_dashes else rest)]
        read, open_flag = _read(word, flags)
        if read is None:
            return [*done, *words[place:]]
        place += 1
        done += read
        if open_flag is not None:
            if place == len(words) or words[place] == "--" or _is_flag(words[place], flags):
                raise UsageError(_needs_value(open_flag, words[place : place + 1]))
            done.append(words[place])
            place += 1
    return done


def find_flag(text: str, flags: Mapping[str, Flag]) -> Flag | None:
    """Return the flag that a word means, in full or cut short; None if there is no such flag.

    Raises `UsageError` if it could be several.
    """
    text = text.replace("_", "-")
    if text in flags:
        return flags[text]
    if not text.startswith("--") or text == "--":
        return None
    fitting = {flag.name: flag for name, flag in flags.items() if name.startswith(text)}
    if not fitting:
        return None
    tier = min(flag.tier for flag in fitting.values())
    first = [flag for flag in fitting.values() if flag.tier == tier]
    if len(first) > 1:
        names = list(fitting)
        raise UsageError(f"{text} could be {', '.join(names[:-1])} or {names[-1]}; write more of it")
    return first[0]


def _is_flag(word: str, flags: Mapping[str, Flag]) -> bool:
    """Whether a word is read as a flag, known or not; what holds a space is one only if it is known."""
    if len(word) < 2 or not word.startswith("-") or _NEGATIVE.fullmatch(word):
        return False
    return " " not in word or find_flag(word.partition("=")[0], flags) is not None


def _read(word: str, flags: Mapping[str, Flag]) -> tuple[list[str] | None, Flag | None]:
    """Write one word out; the second value is the flag whose value must follow."""
    text, equals, value = word.partition("=")
    flag = find_flag(text, flags)
    if flag is not None:
        if flag.takes_value:
            return ([flag.name, value], None) if equals else ([flag.name], flag)
        return [f"{flag.name}={value}" if equals else flag.name], None
    if word.startswith("--"):
        return None, None
    return _read_letters(word[1:], flags)


def _read_letters(letters: str, flags: Mapping[str, Flag]) -> tuple[list[str] | None, Flag | None]:
    """Read `-r3`, `-r=3` and `-mr3`: letters without a value, then perhaps one with its value."""
    written: list[str] = []
    while letters:
        flag = flags.get(f"-{letters[0]}")
        if flag is None:
            return None, None
        letters = letters[1:]
        if flag.takes_value:
            written.append(flag.name)
            return ([*written, letters.removeprefix("=")], None) if letters else (written, flag)
        written.append(flag.name)
    return written, None


def _needs_value(flag: Flag, following: Sequence[str]) -> str:
    hint = f"; write {flag.name}={following[0]} if that is the value" if following and following[0] != "--" else ""
    return f"option '{flag.name}' requires an argument{hint}"
