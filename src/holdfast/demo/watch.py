"""The demo's driver: starts agents, reads their output, kills what the story names, and cleans up. No decisions."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.demo.node import Node, kill
from holdfast.demo.page import DemoPage
from holdfast.demo.screen import Screen
from holdfast.demo.story import (
    HOST,
    WORKERS_PER_NODE,
    Begin,
    Effect,
    End,
    EndTraining,
    Event,
    KillNode,
    KillWorker,
    NodeEnded,
    Report,
    StartNode,
    StoryMachine,
    Tell,
)
from holdfast.machine import Tick
from holdfast.wire.ports import HeldPort
from holdfast.workers.linux import set_child_subreaper
from holdfast.workers.strays import children, descendants

TRAIN = str(Path(__file__).with_name("train.py"))
#: Beyond this something is wrong, since the story ends training once the model fits.
STEPS_MAX = 100_000
#: How long agents may take to end when asked to; then they are killed.
GOODBYE_S = 5.0
#: How often a living screen is drawn.
FRAME_S = 0.1
#: What would change the agents' behaviour if it leaked in from outside.
FOREIGN = ("PET_", "HOLDFAST_", "TORCHELASTIC_", "LOGLEVEL", "OMP_NUM_THREADS")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How fast and how long."""

    #: Pause before each step, so that a person can watch.
    step_s: float = 0.05
    #: Steps from one recovery to the next kill.
    steps_between: int = 40
    patience_s: float = 30.0
    #: Whether to serve the page of the job, where its packages are installed.
    page: bool = False
    #: How long the page stays after the end, unless a signal comes before.
    stay_s: float = 0.0


def run_demo(options: DemoOptions, screen: Screen) -> Report | signal.Signals:
    """Run the demo to its end and show the report; returns the signal where one has ended it. Nothing is left."""
    with (
        _Signals() as signals,
        tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder,
        _no_orphans(),
        contextlib.closing(_Watch(options, screen, Path(folder), signals)) as watch,
    ):
        return watch.run()


class _Watch:
    """Owns the agents while the story is told."""

    def __init__(self, options: DemoOptions, screen: Screen, folder: Path, signals: _Signals) -> None:
        self._options = options
        self._screen = screen
        self._folder = folder
        self._signals = signals
        self._story = StoryMachine(steps_between=options.steps_between, patience_s=options.patience_s)
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fileno(), selectors.EVENT_READ)
        self._nodes: list[Node] = []
        # Held so that no other process takes the port before node A listens on it.
        self._port = HeldPort()
        self._page = DemoPage(self._environ()) if options.page else None
        if self._page is not None:
            self._selector.register(self._page.fileno(), selectors.EVENT_READ, self._page)
        self._link = ""
        self._report: Report | None = None
        self._drawn_at = float("-inf")

    def run(self) -> Report | signal.Signals:
        """Hand events to the story and carry out what it answers, until it ends or a signal comes."""
        self._handle(Begin())
        while self._report is None:
            for key, _ in self._selector.select(self._patience()):
                if isinstance(key.data, DemoPage):
                    self._tell_link(key.data)
                elif key.data is not None:
                    self._hear(key.data, key.fd)
            if (number := self._signals.take()) is not None:
                self._screen.tell(f"{number.name}: stopping everything", time.monotonic())
                return number
            self._handle(Tick())
            self._draw()
        if not self._report.succeeded:
            self._explain()
        self._screen.conclude(self._report)
        if self._link and self._options.stay_s:
            self._stay()
        return self._report

    def _stay(self) -> None:
        """Leave the page there for a while."""
        print(f"\nthe page stays, at {self._link}, until you press Ctrl-C", flush=True)
        until = time.monotonic() + self._options.stay_s
        while (left := until - time.monotonic()) > 0 and self._signals.take() is None:
            self._signals.wait(left)

    def _tell_link(self, page: DemoPage) -> None:
        self._selector.unregister(page.fileno())
        self._link = page.read_link()
        if self._link:
            self._screen.tell(f"see it, and kill workers yourself, at {self._link}", time.monotonic())

    def close(self) -> None:
        """Stop what still runs: SIGTERM, then SIGKILL."""
        if self._page is not None:
            self._page.close()
        for node in self._nodes:
            node.terminate()
        _wait_ended([node.pidfd for node in self._nodes], GOODBYE_S)
        for node in self._nodes:
            node.kill()
            node.close()
        self._selector.close()
        self._port.close()

    def _draw(self) -> None:
        now = time.monotonic()
        if now >= self._drawn_at + FRAME_S:
            self._drawn_at = now
            self._screen.draw(self._story.rows(), now)

    def _patience(self) -> float:
        """How long to wait for something to happen: until the next frame, or until the story wants to know the time."""
        times = [self._drawn_at + FRAME_S, self._story.wakeup() or float("inf")]
        return max(min(times) - time.monotonic(), 0.0)

    def _hear(self, node: Node, fd: int) -> None:
        if fd == node.pidfd:
            # Its last words first.
            for stream in node.streams:
                self._read(node, stream)
            self._selector.unregister(fd)
            self._handle(NodeEnded(node.name, node.exit_code() or 0))
        else:
            self._read(node, fd)

    def _read(self, node: Node, stream: int) -> None:
        if stream not in self._selector.get_map():
            return
        events, goes_on = node.read(stream)
        if not goes_on:
            self._selector.unregister(stream)
        for event in events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        for effect in self._story.handle(event, time.monotonic()):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Tell():
                self._screen.tell(effect.sentence, time.monotonic(), effect.tone)
            case StartNode():
                self._start(effect.node)
            case KillWorker():
                kill(effect.pid)
            case KillNode():
                next(node for node in reversed(self._nodes) if node.name == effect.node).kill()
            case EndTraining():
                (self._folder / "enough").touch()
            case End():
                self._report = effect.report

    def _start(self, name: str) -> None:
        node = Node(name, self._command(name), self._environ())
        self._nodes.append(node)
        for fd in (*node.streams, node.pidfd):
            self._selector.register(fd, selectors.EVENT_READ, node)

    def _command(self, name: str) -> list[str]:
        """Return what a person would type on that node."""
        return [
            *(sys.executable, "-m", "holdfast", "launch", "--json"),
            *("--nnodes", "1:2", "--nproc-per-node", str(WORKERS_PER_NODE), "--max-restarts", "5"),
            *("--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{self._port.port}", "--rdzv-id", "demo"),
            # Both nodes are on one machine here; this says which of them is the endpoint's owner.
            *("--rdzv-conf", f"is_host={str(name == HOST).lower()}"),
            *("--preload", "holdfast.store.environ", "--tee", "3", "--log-dir", str(self._folder / "logs")),
            *(TRAIN, str(self._folder), str(STEPS_MAX), str(self._options.step_s)),
        ]

    def _environ(self) -> dict[str, str]:
        """Return this process's environment without what would change how agents behave."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {**kept, "HOLDFAST_HOME": str(self._folder / "home")}

    def _explain(self) -> None:
        """Show the last lines of every agent, to explain a failed demo."""
        for node in self._nodes:
            for line in node.tail:
                self._screen.tell(f"node {node.name}: {line}", time.monotonic())


class _Signals:
    """While open, signals that mean the end are only noted; `fileno` becomes readable then."""

    def __enter__(self) -> _Signals:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        # A handler of our own, or Python would not let the signal wake the descriptor.
        self._before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._read_end.close()
        self._write_end.close()

    def fileno(self) -> int:
        """What to wait on."""
        return self._read_end.fileno()

    def wait(self, timeout_s: float) -> None:
        """Wait until a signal has come, at most so long."""
        select.select([self._read_end], [], [], timeout_s)

    def take(self) -> signal.Signals | None:
        """Return a signal that has come."""
        try:
            data = self._read_end.recv(64)
        except BlockingIOError:
            return None
        return next((signal.Signals(number) for number in data if number in SIGNALS), None)


@contextlib.contextmanager
def _no_orphans() -> Iterator[None]:
    """Become the parent of orphaned processes, and kill and reap all of them at the end."""
    before = frozenset(children(os.getpid()))
    set_child_subreaper(True)
    try:
        yield
    finally:
        while ours := [pid for pid in children(os.getpid()) if pid not in before]:
            for pid in ours:
                for each in (*descendants(pid), pid):
                    kill(each)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        set_child_subreaper(False)


def _wait_ended(pidfds: list[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    waiting = set(pidfds)
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
