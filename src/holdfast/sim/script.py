"""Scripts: a text of commands with the full story under each, in the manner of etcd's raft.

A script is a list of blocks. A block is one or more commands, a line of four dashes, and what happened, up to a blank
line:

    join a b
    ----
        0.000  a            says Join, waiting, ask 1

The network is even, workers start and stop at once, and time moves only by `advance`, so that the story can be read.

    run min 2 max 4 [restarts 3] [admit restart] [every 5s] [lease 5s] [quiet 3s] [last-call 30s] [recovery 10s]
    join a b [on HOST] [workers 2] [rank 0]      start nodes, which ask for a round
    advance 1.5s                                 let time pass
    fail a "exit code 1" / victim a "..."        a worker of the node fails
    finish a b / leave a / close a "why"         what agents do; one that leaves is sent SIGTERM
    crash a [silently] / pause a / resume a / cut a / mend a / break a
    stop coordinator / start coordinator / lose disk
    status                                       the run's sentence
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.coordinator.messages import Admit, RunSettings
from holdfast.errors import UsageError
from holdfast.sim.nodes import SimNode
from holdfast.sim.scenario import NodePlan, Scenario, Weather
from holdfast.sim.simulation import Simulation

DASHES = "----"
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Block:
    """Some commands and what is said to happen."""

    commands: tuple[str, ...]
    expected: str


def parse(text: str) -> list[Block]:
    """Cut a script into its blocks; lines that begin with # belong to the commands below them."""
    blocks: list[Block] = []
    for part in text.strip("\n").split("\n\n"):
        commands, _, expected = part.partition(f"\n{DASHES}")
        blocks.append(Block(tuple(commands.strip("\n").split("\n")), expected.strip("\n")))
    return blocks


def play(text: str) -> str:
    """Carry out a script and return it with what really happened under every command."""
    script = Script()
    parts: list[str] = []
    for block in parse(text):
        for command in block.commands:
            if not command.startswith("#"):
                script.do(command)
        parts.append("\n".join([*block.commands, DASHES, script.told()]))
    return "\n\n".join(parts) + "\n"


class Script:
    """A simulation that is told what to do, command by command."""

    def __init__(self) -> None:
        self._sim: Simulation | None = None
        self._lines_told = 0
        self._says: list[str] = []

    def do(self, command: str) -> None:
        """Carry out one command."""
        word, *args = shlex.split(command)
        acts = {
            "run": self._run,
            "join": self._join,
            "advance": self._advance,
            "crash": self._crash,
            "stop": self._stop,
            "start": self._start,
            "lose": self._lose,
            "status": self._status,
        }
        if word in acts:
            acts[word](args)
        elif word in _NODE_ACTS:
            _NODE_ACTS[word](self, args)
        else:
            raise UsageError(f"a script has no command '{word}'")

    def told(self) -> str:
        """Return what has happened since this was last asked."""
        story = self._world.story
        assert story is not None
        lines = [*story.lines[self._lines_told :], *self._says]
        self._lines_told = len(story.lines)
        self._says = []
        return "\n".join(lines) or "ok"

    def node(self, name: str) -> SimNode:
        """Return the present life of a node."""
        return self._world.current[name]

    @property
    def _world(self) -> Simulation:
        if self._sim is None:
            raise UsageError("a script begins with 'run'")
        return self._sim

    # -- commands --------------------------------------------------------------------------------------------

    def _run(self, args: list[str]) -> None:
        options = _pairs(args)
        settings = RunSettings(
            min_nodes=int(options["min"]),
            max_nodes=int(options["max"]),
            max_restarts=int(options.get("restarts", "3")),
            last_call_s=_seconds(options.get("last-call", "30s")),
            quiet_s=_seconds(options.get("quiet", "3s")),
            admit=Admit(options.get("admit", "at-once")),
            admit_every_s=_seconds(options.get("every", "0s")),
            recovery_s=_seconds(options.get("recovery", "10s")),
        )
        scenario = Scenario(
            seed=0,
            settings=settings,
            weather=Weather(delay_s=0.001, spread=0.0),
            nodes=(),
            lease_s=_seconds(options.get("lease", "5s")),
            heal_at=_NEVER,
            start_s=0.0,
            stop_s=0.0,
        )
        self._sim = Simulation(scenario, story=True)

    def _join(self, args: list[str]) -> None:
        names = [
            arg for index, arg in enumerate(args) if arg not in _JOIN_OPTIONS and args[index - 1] not in _JOIN_OPTIONS
        ]
        options = _pairs(args[len(names) :])
        for name in names:
            self._world.plans[name] = NodePlan(
                name=name,
                host=options.get("on", f"host-{name}"),
                workers=int(options.get("workers", "1")),
                node_rank=int(options.get("rank", "-1")),
            )
            self._world.arrive(name)

    def _advance(self, args: list[str]) -> None:
        world = self._world.world
        world.run(round(world.now + _seconds(args[0]), 6))

    def _crash(self, args: list[str]) -> None:
        self.node(args[0]).crash(silent=args[1:] == ["silently"])

    def _stop(self, args: list[str]) -> None:
        self._expect_coordinator(args)
        self._say("the coordinator dies")
        self._world.coordinator.die(disk_lost=False)

    def _start(self, args: list[str]) -> None:
        self._expect_coordinator(args)
        self._say("the coordinator starts")
        self._world.coordinator.boot()

    def _lose(self, args: list[str]) -> None:
        if args != ["disk"]:
            raise UsageError("write 'lose disk'")
        self._world.coordinator.disk.clear()
        self._world.safety.forget()

    def _status(self, _: list[str]) -> None:
        run = self._world.coordinator.run
        self._says.append(run.sentence(self._world.coordinator.local()) if run is not None else "no run")

    def _say(self, what: str) -> None:
        story = self._world.story
        assert story is not None
        story.tell("world", what)

    @staticmethod
    def _expect_coordinator(args: list[str]) -> None:
        if args != ["coordinator"]:
            raise UsageError("only the coordinator is stopped and started; nodes crash and join")

    def finish(self, names: list[str]) -> None:
        """Let the workers of some nodes finish well."""
        for name in names:
            self.node(name).finish()

    def cut(self, name: str) -> None:
        """Cut a node off, both ways."""
        self._world.network.cut(name, up=True, down=True)

    def mend(self, name: str) -> None:
        """Let a node be reached again."""
        self._world.network.mend(name, up=True, down=True)

    def break_link(self, name: str) -> None:
        """Break a node's connection."""
        link = self.node(name).link
        if link is not None:
            self._world.network.break_off(link)


_JOIN_OPTIONS = ("on", "workers", "rank")
_NODE_ACTS: dict[str, Callable[[Script, list[str]], None]] = {
    "fail": lambda script, args: script.node(args[0]).worker_fails(args[1], victim=False),
    "victim": lambda script, args: script.node(args[0]).worker_fails(args[1], victim=True),
    "leave": lambda script, args: script.node(args[0]).leave(),
    "close": lambda script, args: script.node(args[0]).close(args[1]),
    "finish": lambda script, args: script.finish(args),
    "pause": lambda script, args: script.node(args[0]).pause(),
    "resume": lambda script, args: script.node(args[0]).resume(),
    "cut": lambda script, args: script.cut(args[0]),
    "mend": lambda script, args: script.mend(args[0]),
    "break": lambda script, args: script.break_link(args[0]),
}


def _pairs(args: list[str]) -> dict[str, str]:
    return dict(zip(args[::2], args[1::2], strict=True))


def _seconds(text: str) -> float:
    if text.endswith("ms"):
        return float(text[:-2]) / 1000
    if text.endswith("s"):
        return float(text[:-1])
    raise UsageError(f"'{text}' is not a duration; write 1.5s or 100ms")
