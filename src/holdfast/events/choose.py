"""Which handlers a person asked for, by flag or environment: `console,jsonl:events.jsonl`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.events.api import EventHandler

if TYPE_CHECKING:
    from holdfast.plugins import Plugin

#: Entry points here take the text after the name's colon and return an `EventHandler`.
GROUP = "holdfast.events"
VARIABLE = "HOLDFAST_EVENTS"
#: Where TorchElastic sends what happens in its rendezvous; nowhere, unless somebody registers a handler of this name.
RENDEZVOUS = "dynamic_rendezvous"


@dataclass(frozen=True, slots=True)
class Choice:
    """One handler by name, and the text after its colon."""

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def spec_from(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return what was asked for: the flag, else $HOLDFAST_EVENTS, else `null`; raises `UsageError` if it cannot be."""
    spec = flag or environ.get(VARIABLE) or "null"
    try:
        parse(spec)
    except UsageError as error:
        raise UsageError(f"{'--event-log-handler' if flag else '$' + VARIABLE}: {error}") from None
    return spec


def parse(spec: str, also: Iterable[str] = ()) -> tuple[Choice, ...]:
    """Read `NAME[:ARGUMENT][,NAME[:ARGUMENT]...]`; names are those installed and those in `also`."""
    choices = [_choice(piece.strip()) for piece in spec.split(",") if piece.strip()]
    if not choices:
        raise UsageError(f"'{spec}' names no event handler; write null for none")
    for choice in choices:
        if choice.name not in also and choice.name != RENDEZVOUS:
            _plugin(choice.name, also)
    return tuple(dict.fromkeys(choices))


def make(choice: Choice) -> EventHandler:
    """Make the handler that an installed plugin offers under this name."""
    plugin = _plugin(choice.name)
    handler = plugin.load()(choice.argument)
    if not isinstance(handler, EventHandler):
        raise UsageError(
            f"the plugin '{choice.name}' of {plugin.package} ({plugin.value}) made a {type(handler).__name__}, "
            "which is no EventHandler"
        )
    return handler


def _plugin(name: str, also: Iterable[str] = ()) -> Plugin:
    """Find what is installed; importing what can look for that takes longer than all the rest, so it is done late."""
    from holdfast import plugins

    plugin = plugins.get(name, GROUP)
    if plugin is not None:
        return plugin
    from difflib import get_close_matches

    known = sorted({*(each.name for each in plugins.find(GROUP)), *also, RENDEZVOUS})
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"there is no event handler '{name}'; {hint}there are: {', '.join(known)}")


def _choice(piece: str) -> Choice:
    name, _, argument = piece.partition(":")
    return Choice(name.strip(), argument)
