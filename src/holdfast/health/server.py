"""The health server, the agent's side: starts the health process, reports progress to it, answers its questions.

`HealthCheckServer` has TorchElastic's shape, where it is a stub to extend: a class of your own overrides `start` and
`stop`. This one serves HTTP by itself.

Two kinds of thread serve the health process here. One calls the alive callbacks at a steady pace and sends what they
return; it runs nothing else, so that only the agent itself can make it late. Each question of the health process is
answered by a short-lived thread of its own, at most one of a kind at a time, so that a callback that hangs blocks only
its own endpoint.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from holdfast.errors import UnavailableError
from holdfast.facts import Fact, facts
from holdfast.health.address import HOST_DEFAULT, known_names, listen
from holdfast.health.handle import ProcessHandle
from holdfast.health.http import JSON
from holdfast.health.liveness import Liveness, Part
from holdfast.health.protocol import NO_METRICS, Limits, Policy
from holdfast.health.redact import redact
from holdfast.wire.address import Endpoint

AliveCallback = Callable[[], float]

#: How often the alive callbacks are called; faster where the timeout is short.
LOOK_S_MAX, LOOK_S_MIN = 1.0, 0.05
LOOKS_PER_TIMEOUT = 4
#: A health process that dies is replaced; one that dies this often within this time is given up.
DEATHS_MAX, DEATHS_WITHIN_S = 5, 60.0
#: The first is replaced at once; the pause before each further one doubles.
BACKOFF_S = 0.1
JOIN_TIMEOUT_S = 1.0


class HealthCheckServer:
    """Reports over HTTP whether the agent is alive: `alive_callback` returns when it last was, as `time.time()` does.

    Override `start` and `stop` to serve in another way; `alive_callback`, `port` and `timeout` are there for that.
    """

    def __init__(
        self,
        alive_callback: AliveCallback,
        port: int,
        timeout: float,
        *,
        host: str = HOST_DEFAULT,
        status: Callable[[], dict[str, Any]] | None = None,
        ready: Callable[[], tuple[bool, str]] | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        no_metrics: str = NO_METRICS,
        names: Iterable[str] = (),
        watched: Mapping[str, AliveCallback] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._host = host
        self._status = status
        self._ready = ready
        self._metrics = metrics
        self._no_metrics = no_metrics
        #: Further names that it answers to.
        self._names = tuple(names)
        #: Further parts that must move, by name: "the watchdog".
        self._watched = {"the agent's loop": alive_callback, **(watched or {})}
        self._limits = limits
        self._handle: ProcessHandle | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._reported: set[str] = set()

    @property
    def alive_callback(self) -> AliveCallback:
        """The callback that returns when the agent was last alive."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port; once started the real one, also where port 0 asked for any."""
        return self._port

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        return Endpoint(self._host, self._port)

    @property
    def timeout(self) -> float:
        """The silence in seconds after which the agent counts as dead."""
        return self._timeout

    @property
    def look_every_s(self) -> float:
        """How often the alive callbacks are called; a loop should beat as often."""
        return max(LOOK_S_MIN, min(LOOK_S_MAX, self._timeout / LOOKS_PER_TIMEOUT))

    def start(self) -> None:
        """Start serving; raises `UnavailableError` if the port is taken. Does nothing if it is started already."""
        if self._thread is not None:
            return
        listener = listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        try:
            policy = Policy(
                frozenset(self._questions()), frozenset(known_names(self._host, self._names)), self._no_metrics
            )
            handle = ProcessHandle(listener, self._timeout, policy, self._limits)
        except BaseException:
            listener.close()
            raise
        self._handle = handle
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(handle,), name="holdfast-health", daemon=True)
        self._thread.start()
        facts.publish(Fact("health_started", f"health at http://{self.endpoint}/", {"endpoint": str(self.endpoint)}))

    def stop(self) -> None:
        """Stop serving and leave nothing behind; does nothing if it is not started."""
        handle, self._handle = self._handle, None
        thread, self._thread = self._thread, None
        if handle is None or thread is None:
            return
        self._stopping.set()
        handle.end()
        thread.join(JOIN_TIMEOUT_S)  # it may be inside an alive callback that hangs; then it ends when that does
        handle.close()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # -- on its own thread -----------------------------------------------------------------------------------------

    def _run(self, handle: ProcessHandle) -> None:
        """Serve until the end. Errors are reported and the health process is replaced, as long as that helps."""
        deaths: deque[float] = deque()
        while True:
            try:
                self._tell(handle)
                words = handle.last_output()
            except (Exception, SystemExit):  # noqa: BLE001 - a thread must not end silently
                words = traceback.format_exc()
            if handle.ended or not self._replace(handle, deaths, words.strip()):
                return

    def _tell(self, handle: ProcessHandle) -> None:
        """Report the agent's progress at a steady pace and after each question, until the health process is gone."""
        handle.send({"parts": self._parts()})
        while (words := handle.wait_frames(self.look_every_s)) is not None:
            for head in words:
                if "ask" in head:
                    self._answer_soon(handle, str(head["ask"]))
                else:
                    self._report_mistake(str(head.get("mistake", head)))
            handle.send({"parts": self._parts()})

    def _replace(self, handle: ProcessHandle, deaths: deque[float], words: str) -> bool:
        """Replace a health process that is gone, unless it was ended or dies too often; return whether one runs."""
        trouble = f":\n{words}" if words else ""
        while True:
            deaths.append(time.monotonic())
            while deaths[-1] - deaths[0] > DEATHS_WITHIN_S:
                deaths.popleft()
            if len(deaths) == DEATHS_MAX:
                handle.end()
                facts.warn(
                    "health_lost", f"the health server's process cannot live; nothing answers at its port{trouble}"
                )
                return False
            if self._stopping.wait(BACKOFF_S * (2 ** (len(deaths) - 1) - 1)):
                return False
            try:
                replaced = handle.replace()
            except UnavailableError as error:  # no process could be started: perhaps one can be in a moment
                trouble = f": {error}"
                continue
            if replaced:
                facts.warn("health_restarted", f"the health server's process was gone and is replaced{trouble}")
            return replaced

    def _parts(self) -> list[Part]:
        return [self._part(name, callback) for name, callback in self._watched.items()]

    def _part(self, name: str, callback: AliveCallback) -> Part:
        """Call an alive callback; its time becomes monotonic at once: a clock that is set later does not matter."""
        now = time.monotonic()
        try:
            silent_s = max(0.0, time.time() - float(callback()))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a program's callback may raise anything
            self._report(f"asking when {name} last moved", error)
            return Part(name, now, f"asking when {name} last moved raised {type(error).__name__}")
        return Part(name, now - silent_s)

    # -- questions, each on a thread of its own --------------------------------------------------------------------

    def _questions(self) -> list[str]:
        given = {"ready": self._ready, "metrics": self._metrics}
        return ["status", *(kind for kind, callback in given.items() if callback is not None)]

    def _answer_soon(self, handle: ProcessHandle, kind: str) -> None:
        thread = threading.Thread(target=self._answer, args=(handle, kind), name=f"holdfast-health-{kind}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # this process may start no more threads
            self._refuse(handle, kind, error)

    def _answer(self, handle: ProcessHandle, kind: str) -> None:
        try:
            head, body = self._ask(kind)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's callback may raise anything
            self._refuse(handle, kind, error)
            return
        if len(body) > self._limits.answer_bytes_max:
            head, body = {"error": f"the answer is over the limit of {self._limits.answer_bytes_max} bytes"}, b""
        handle.send({"answer": kind, **head}, body)

    def _ask(self, kind: str) -> tuple[dict[str, Any], bytes]:
        if kind == "ready" and self._ready is not None:
            ok, sentence = self._ready()
            return {"ok": bool(ok), "sentence": str(sentence)}, b""
        if kind == "metrics" and self._metrics is not None:
            body, content_type = self._metrics()
            return {"type": " ".join(content_type.split())}, bytes(body)
        return {"type": JSON}, json.dumps(self._whole_status(), indent=2).encode() + b"\n"

    def _whole_status(self) -> dict[str, Any]:
        liveness, now = Liveness(tuple(self._parts()), self._timeout), time.monotonic()
        ours = {"alive": not liveness.trouble(now), "health": liveness.sentence(now)}
        theirs = redact(dict(self._status())) if self._status is not None else {}
        return {**ours, **theirs, **ours}  # ours come first and are not overruled

    def _refuse(self, handle: ProcessHandle, kind: str, error: BaseException) -> None:
        """Show the client only the type of the error: its text may hold secrets."""
        self._report(f"the {kind} callback", error)
        handle.send(
            {"answer": kind, "error": f"the {kind} callback raised {type(error).__name__}; see the agent's log"}
        )

    def _report_mistake(self, text: str) -> None:
        facts.warn("health_trouble", f"the health server's process made a mistake; please report this:\n{text.strip()}")

    def _report(self, what: str, error: BaseException) -> None:
        if what not in self._reported:
            self._reported.add(what)
            facts.warn("health_callback", f"health: {what} raised {error!r}; this is not reported again", callback=what)


def create_healthcheck_server(
    alive_callback: AliveCallback, port: int, timeout: float, **options: Any
) -> HealthCheckServer:
    """Return a server that `start` makes answer; the options are those of `HealthCheckServer`."""
    return HealthCheckServer(alive_callback, port, timeout, **options)
