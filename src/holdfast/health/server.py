"""The health server, the agent's side: starts the porter, tells it when the agent moved, answers its questions.

`HealthCheckServer` has TorchElastic's shape, where it is a stub to be extended: a class of your own overrides `start`
and `stop` and serves as it likes. This one serves HTTP by itself.

Two kinds of thread serve the porter here. One asks the alive callbacks at a steady pace and sends what they say; it
runs nothing else, so that nothing but the agent itself can make it late. Each question of the porter is answered by a
short-lived thread of its own, at most one of a kind at a time, so that a callback that hangs costs only its own
endpoint.
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
from holdfast.health.address import HOST_DEFAULT
from holdfast.health.desk import NO_METRICS, Policy
from holdfast.health.hosts import known_names
from holdfast.health.http import JSON
from holdfast.health.limits import Limits
from holdfast.health.listening import listen
from holdfast.health.process import PorterProcess
from holdfast.health.redact import redact
from holdfast.health.vitals import Part, Vitals
from holdfast.wire.address import Endpoint

AliveCallback = Callable[[], float]

#: How often the alive callbacks are asked; faster where the timeout is short.
LOOK_S_MAX, LOOK_S_MIN = 1.0, 0.05
LOOKS_PER_TIMEOUT = 4
#: A porter that is killed is replaced; one that dies so often within so long cannot live, and is given up.
DEATHS_MAX, DEATHS_WITHIN_S = 5, 60.0
#: The first is replaced at once; before each further one the pause doubles.
BACKOFF_S = 0.1
JOIN_TIMEOUT_S = 1.0


class HealthCheckServer:
    """Tells over HTTP whether the agent is alive: `alive_callback` says when it last was, in seconds of `time.time()`.

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
        self._porter: PorterProcess | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._reported: set[str] = set()

    @property
    def alive_callback(self) -> AliveCallback:
        """What says when the agent was last known alive."""
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
        """How often the alive callbacks are asked; a loop that beats should come round as often."""
        return max(LOOK_S_MIN, min(LOOK_S_MAX, self._timeout / LOOKS_PER_TIMEOUT))

    def start(self) -> None:
        """Begin to answer; raises `UnavailableError` where the port is taken. Does nothing if it is started already."""
        if self._thread is not None:
            return
        listener = listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        try:
            policy = Policy(
                frozenset(self._questions()), frozenset(known_names(self._host, self._names)), self._no_metrics
            )
            porter = PorterProcess(listener, self._timeout, policy, self._limits)
        except BaseException:
            listener.close()
            raise
        self._porter = porter
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(porter,), name="holdfast-health", daemon=True)
        self._thread.start()
        facts.publish(Fact("health_started", f"health at http://{self.endpoint}/", {"endpoint": str(self.endpoint)}))

    def stop(self) -> None:
        """Answer no more and leave nothing behind; does nothing if it is not started."""
        porter, self._porter = self._porter, None
        thread, self._thread = self._thread, None
        if porter is None or thread is None:
            return
        self._stopping.set()
        porter.hang_up()
        thread.join(JOIN_TIMEOUT_S)  # it may be inside an alive callback that hangs; then it ends when that does
        porter.close()

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

    def _run(self, porter: PorterProcess) -> None:
        """Serve until the end. Whatever goes wrong is told, and the porter replaced, as long as that helps."""
        deaths: deque[float] = deque()
        while True:
            try:
                self._tell(porter)
                words = porter.last_words()
            except (Exception, SystemExit):  # noqa: BLE001 - a thread must not end without a word
                words = traceback.format_exc()
            if porter.ended or not self._replace(porter, deaths, words.strip()):
                return

    def _tell(self, porter: PorterProcess) -> None:
        """Tell the porter how the agent is, at a steady pace and whenever it asks something, until it is gone."""
        porter.send({"parts": self._parts()})
        while (words := porter.wait_words(self.look_every_s)) is not None:
            for head in words:
                if "ask" in head:
                    self._answer_soon(porter, str(head["ask"]))
                else:
                    self._report_mistake(str(head.get("mistake", head)))
            porter.send({"parts": self._parts()})

    def _replace(self, porter: PorterProcess, deaths: deque[float], words: str) -> bool:
        """Replace a porter that is gone, unless it was sent home or cannot live; says whether there is one again."""
        trouble = f":\n{words}" if words else ""
        while True:
            deaths.append(time.monotonic())
            while deaths[-1] - deaths[0] > DEATHS_WITHIN_S:
                deaths.popleft()
            if len(deaths) == DEATHS_MAX:
                porter.hang_up()
                facts.warn(
                    "health_lost", f"the health server's process cannot live; nothing answers at its port{trouble}"
                )
                return False
            if self._stopping.wait(BACKOFF_S * (2 ** (len(deaths) - 1) - 1)):
                return False
            try:
                replaced = porter.replace()
            except UnavailableError as error:  # no process could be started: perhaps one can be in a moment
                trouble = f": {error}"
                continue
            if replaced:
                facts.warn("health_restarted", f"the health server's process was gone and is replaced{trouble}")
            return replaced

    def _parts(self) -> list[Part]:
        return [self._part(name, callback) for name, callback in self._watched.items()]

    def _part(self, name: str, callback: AliveCallback) -> Part:
        """Ask when a part last moved; turned into monotonic time at once, so that only this moment's clock matters."""
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

    def _answer_soon(self, porter: PorterProcess, kind: str) -> None:
        thread = threading.Thread(target=self._answer, args=(porter, kind), name=f"holdfast-health-{kind}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # this process may start no more threads
            self._refuse(porter, kind, error)

    def _answer(self, porter: PorterProcess, kind: str) -> None:
        try:
            head, body = self._ask(kind)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's callback may raise anything
            self._refuse(porter, kind, error)
            return
        if len(body) > self._limits.answer_bytes_max:
            head, body = {"error": f"the answer is over the limit of {self._limits.answer_bytes_max} bytes"}, b""
        porter.send({"answer": kind, **head}, body)

    def _ask(self, kind: str) -> tuple[dict[str, Any], bytes]:
        if kind == "ready" and self._ready is not None:
            ok, sentence = self._ready()
            return {"ok": bool(ok), "sentence": str(sentence)}, b""
        if kind == "metrics" and self._metrics is not None:
            body, content_type = self._metrics()
            return {"type": " ".join(content_type.split())}, bytes(body)
        return {"type": JSON}, json.dumps(self._whole_status(), indent=2).encode() + b"\n"

    def _whole_status(self) -> dict[str, Any]:
        vitals, now = Vitals(tuple(self._parts()), self._timeout), time.monotonic()
        ours = {"alive": not vitals.trouble(now), "health": vitals.sentence(now)}
        theirs = redact(dict(self._status())) if self._status is not None else {}
        return {**ours, **theirs, **ours}  # ours come first and are not overruled

    def _refuse(self, porter: PorterProcess, kind: str, error: BaseException) -> None:
        """Tell the client only the kind of error: its text may hold anything."""
        self._report(f"the {kind} callback", error)
        porter.send(
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
