"""Sinks: handlers of metrics and events that a user chooses by name, each behind a bounded queue.

    NAME[:ARGUMENT]           console   jsonl:run.jsonl   otlp:http://localhost:4318
    GROUP=NAME[:ARGUMENT]     where values have groups, as metrics do: my_app=statsd:localhost:8125

Commas separate choices; a comma inside an argument is doubled. Every sink is an entry point, ours included: a function
`create_handler(argument)` that returns a handler.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.home import expand
from holdfast.outbox import CLOSE_TIMEOUT_S, GATHER_S, ITEMS_MAX, Outbox

if TYPE_CHECKING:
    from holdfast.plugins import Plugin

T = TypeVar("T")

#: How long one export to a collector may take.
EXPORT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One sink by name, the text after its colon, and the group whose values it gets (None: all other groups)."""

    name: str
    argument: str = ""
    group: str | None = None

    def __str__(self) -> str:
        group = "" if self.group is None else f"{self.group}="
        return f"{group}{self.name}{f':{self.argument}' if self.argument else ''}"


def join(choices: Sequence[Choice]) -> str:
    """Write choices as one text that `Kind.parse` reads back."""
    return ",".join(str(choice).replace(",", ",,") for choice in choices)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sink: its name in messages, its group of entry points, the method of a handler that takes one item."""

    noun: str
    entry_points: str
    method: str
    has_groups: bool = False

    def parse(self, texts: Iterable[str]) -> list[Choice]:
        """Read what the flag, in all its repetitions, or the variable says; a choice that is repeated counts once."""
        return list(dict.fromkeys(self._parse_one(piece) for text in texts for piece in _split(text)))

    def find(self, choice: Choice, also: Iterable[str] = ()) -> Plugin:
        """Return the plugin of this name; otherwise raise `UsageError`, which lists all names and those in `also`."""
        from holdfast import plugins  # not needed before a sink is chosen

        name = choice.name
        plugin = plugins.get(name, self.entry_points)
        if plugin is not None:
            return plugin
        from difflib import get_close_matches

        known = sorted({*(each.name for each in plugins.find(self.entry_points)), *also})
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        if "/" in name or "." in name:
            hint = f"for a file write jsonl:{name}; "
        raise UsageError(f"there is no {self.noun} '{name}'; {hint}there are: {', '.join(known)}")

    def make(self, choice: Choice) -> Any:
        """Make the handler; raises `UsageError`, `PluginBrokenError`, or any other exception of the plugin's code."""
        from holdfast.errors import PluginBrokenError

        plugin = self.find(choice)
        handler = plugin.load()(choice.argument)
        if not callable(getattr(handler, self.method, None)):
            raise PluginBrokenError(
                f"the plugin '{choice.name}' of {plugin.package} ({plugin.value}) made a {type(handler).__name__}, "
                f"which has no '{self.method}'"
            )
        return handler

    def _parse_one(self, text: str) -> Choice:
        head, _, argument = text.partition(":")
        group, equals, name = head.rpartition("=") if self.has_groups else ("", "", head)
        if not name.strip() or (equals and not group.strip()):
            also = " or GROUP=NAME:ARGUMENT" if self.has_groups else ""
            raise UsageError(f"'{text}' names no {self.noun}: write NAME, NAME:ARGUMENT{also}")
        return Choice(name.strip(), argument.strip(), group.strip() if equals else None)


def _split(text: str) -> list[str]:
    pieces = text.replace(",,", "\0").split(",")
    return [piece.replace("\0", ",").strip() for piece in pieces if piece.strip()]


# -- calling handlers ----------------------------------------------------------------------------------------


class Guarded(Generic[T]):
    """Calls a handler and lets no exception through; the first one is reported."""

    __slots__ = ("_noun", "_reported", "_take", "handler")

    def __init__(self, noun: str, handler: object, take: Callable[[T], object]) -> None:
        self.handler = handler
        self._noun = noun
        self._take = take
        self._reported = False

    def __call__(self, item: T) -> None:
        """Hand one item to the handler."""
        try:
            self._take(item)
        except Exception as error:  # noqa: BLE001 - a user's handler may raise anything
            if not self._reported:
                self._reported = True
                facts.warn(
                    "handler_raised",
                    f"the {self._noun} {type(self.handler).__name__} raised {error!r}; "
                    "it is still called, and further errors are not reported",
                )


class Queued(Generic[T]):
    """A bounded queue and a thread in front of a handler: `put` never waits and never raises.

    The thread calls the handler's `flush()` when the queue is empty and its `close()` at the end, where it has them;
    its `gather_s` says how long items may wait for more. A handler that is given as `make` is made by the thread with
    the first item: imports and connections take time, and training does not wait for them.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any, T], None],
        *,
        handler: Any = None,
        make: Callable[[], Any] | None = None,
        items_max: int = ITEMS_MAX,
    ) -> None:
        self._take = take
        self._make = make
        self._handler = handler
        self.outbox: Outbox[T] = Outbox(
            name, self._deliver, items_max=items_max, settle=self._settle, finish=self._finish
        )
        self.outbox.gather_s = getattr(handler, "gather_s", GATHER_S)
        self.put = self.outbox.put

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until the handler has everything so far; return whether that took no longer than `timeout_s`."""
        return self.outbox.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Deliver the rest and close the handler, within `timeout_s`; return whether everything was delivered."""
        return self.outbox.close(timeout_s)

    def _deliver(self, item: T) -> None:
        if self._make is not None:
            make, self._make = self._make, None  # if it raises, that is reported and later items are dropped
            self._handler = make()
            self.outbox.gather_s = getattr(self._handler, "gather_s", GATHER_S)
        if self._handler is not None:
            self._take(self._handler, item)

    def _settle(self) -> None:
        self._call("flush")

    def _finish(self) -> None:
        self._call("close")

    def _call(self, method: str) -> None:
        call = getattr(self._handler, method, None)
        if call is not None:
            call()


def flush_all(queues: Iterable[Queued[Any]], timeout_s: float) -> bool:
    """Flush several queues within `timeout_s` for all of them together; return whether all of them managed."""
    flushed = [queue.flush(left) for queue, left in _with_time_left(queues, timeout_s)]
    return all(flushed)


def close_all(queues: Iterable[Queued[Any]], timeout_s: float) -> None:
    """Close several queues within `timeout_s` for all of them together."""
    for queue, left in _with_time_left(queues, timeout_s):
        queue.close(left)


def _with_time_left(queues: Iterable[Queued[Any]], timeout_s: float) -> Iterator[tuple[Queued[Any], float]]:
    deadline = time.monotonic() + timeout_s
    for queue in queues:
        yield queue, max(0.0, deadline - time.monotonic())


# -- what several sinks need ---------------------------------------------------------------------------------


def refuse_argument(noun: str, name: str, argument: str, why: str = "") -> None:
    """Raise `UsageError` if a sink that takes no argument got one."""
    if argument:
        raise UsageError(f"the {noun} {name} takes nothing after its name, not '{argument}'{f': {why}' if why else ''}")


def otlp_endpoint(text: str, path: str) -> str | None:
    """Return the full OTLP URL: `host:4318` gets a scheme and `path`. None for no text: the SDK's variables decide."""
    from urllib.parse import urlsplit

    if not text:
        return None
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"'{text}' is not an OTLP endpoint: write otlp:http://HOST:4318")
    return url.rstrip("/") + path if parts.path in ("", "/") else url


def open_lines(noun: str, argument: str) -> LineFile:
    """Open the file of a `jsonl:PATH` sink; raises `UsageError`."""
    if not argument:
        raise UsageError(f"the {noun} jsonl needs a file: write jsonl:PATH")
    try:
        return LineFile(argument)
    except OSError as error:
        raise UsageError(f"the {noun} jsonl cannot write {argument}: {error.strerror}") from None


class LineFile:
    """Appends whole lines to a file that other processes may append to as well; raises `OSError`.

    Each line is one write, so lines of several processes do not mix. After a line that a crash or a full disk cut
    short, the next one begins on a line of its own.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = expand(path).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A named pipe without a reader is an error: a blocking open would wait for one.
        access = os.O_WRONLY if self.path.is_fifo() else os.O_RDWR
        flags = access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self.path, flags, 0o644)
        os.set_blocking(self._descriptor, True)
        size = self.size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def append(self, line: bytes) -> int:
        """Write one line without its end, and return the number of bytes written."""
        rest = b"\n" + line + b"\n" if self._torn else line + b"\n"
        total = len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
            self._torn = True
        self._torn = False
        return total

    @property
    def size(self) -> int:
        """The size of the file in bytes; 0 if it is no regular file."""
        status = os.fstat(self._descriptor)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
