"""The network: connections between nodes and the coordinator, and all that can befall a message on its way.

Messages of one connection may be lost, doubled, held up and, where the weather says so, overtake each other: worse
than TCP allows, because the machines promise to stand it. What is kept of TCP is what drivers rely on: nothing is
delivered on a connection before it is open or after its end was told, and an end that cannot be told now is told when
the way is free.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.sim.scenario import Weather
from holdfast.sim.violation import Violation
from holdfast.sim.world import World
from holdfast.wire.frames import Message
from holdfast.wire.handshake import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from holdfast.sim.coordinator import CoordinatorHost
    from holdfast.sim.members import MemberProcess

MESSAGES_MAX = 10_000_000
#: How often a connection that is being made knocks again.
_KNOCK_S = 0.5


class Connection:
    """One connection and what each side thinks of it."""

    __slots__ = ("coordinator_open", "dead", "id", "last_down", "last_up", "life", "node", "node_open")

    def __init__(self, number: int, node: MemberProcess, life: int) -> None:
        self.id = number
        self.node = node
        #: The life of the coordinator that it was made with.
        self.life = life
        self.node_open = True
        self.coordinator_open = False
        #: Whether what is under way on it will never arrive.
        self.dead = False
        self.last_up = 0.0
        self.last_down = 0.0

    @property
    def stands(self) -> bool:
        """Whether it is open on both sides and nothing has happened to it."""
        return self.node_open and self.coordinator_open and not self.dead


class Network:
    """Carries everything that nodes and the coordinator say to each other."""

    def __init__(self, world: World, weather: Weather, rng: Random) -> None:
        self.world = world
        self.weather = weather
        self.rng = rng
        self.coordinator: CoordinatorHost
        self.messages = 0
        #: More than this cannot be needed: a machine that sends it is running in circles.
        self.messages_max = MESSAGES_MAX
        self._connections = 0
        #: How many cuts lie on a node's way to the coordinator, and on the way back.
        self._cuts_up: dict[str, int] = {}
        self._cuts_down: dict[str, int] = {}
        #: What waits for a way to be free, in the order in which it was sent.
        self._held: list[tuple[dict[str, int], str, Callable[..., None], tuple[Any, ...]]] = []

    # -- connections -----------------------------------------------------------------------------------------

    def connect(self, node: MemberProcess) -> Connection:
        """Begin to connect; the node hears how it went."""
        self._connections += 1
        connection = Connection(self._connections, node, 0)
        self.world.after(self._delay(), self._knock, connection, self.world.now + CONNECT_TIMEOUT_S)
        return connection

    def accepted(self, connection: Connection) -> None:
        """The coordinator has taken a connection in: let the node know that it is open."""
        self._send_down(connection, connection.node.link_up)

    def hang_up(self, connection: Connection) -> None:
        """The node closes a connection once what it has sent is out; only the coordinator hears of it."""
        connection.node_open = False
        self._end_up(connection, "the node closed the connection")

    def lose_node(self, connection: Connection, *, silent: bool) -> None:
        """A node's process is gone, and its connection; `silent` where its host is gone and no end is heard."""
        connection.node_open = False
        if silent:
            connection.dead = True
        else:
            self._end_up(connection, "the node's process ended")

    def lose_coordinator(self, connection: Connection) -> None:
        """The coordinator's process is gone; the node hears the connection end."""
        connection.coordinator_open = False
        self._end_down(connection, "the coordinator closed the connection")

    def break_off(self, connection: Connection) -> None:
        """A connection breaks; what is under way is lost and each side hears of it in its own time."""
        connection.dead = True
        self.world.after(self.rng.random(), self._end_up, connection, "the connection broke")
        self.world.after(self.rng.random(), self._end_down, connection, "the connection broke")

    def _knock(self, connection: Connection, deadline: float) -> None:
        if not connection.node_open:
            return
        node = connection.node
        if self._cuts_up.get(node.name) or self._cuts_down.get(node.name):
            if self.world.now >= deadline:
                self._end_down(connection, f"no answer within {CONNECT_TIMEOUT_S:g} s")
            else:
                self.world.after(_KNOCK_S, self._knock, connection, deadline)
        elif not self.coordinator.alive:
            self.world.after(self._delay(), self._end_down, connection, "connection refused")
        else:
            connection.life = self.coordinator.life
            connection.coordinator_open = True
            self.coordinator.post(self.coordinator.connected, connection)
            self.world.at(deadline, self._time_out, connection)

    def _time_out(self, connection: Connection) -> None:
        if connection.node_open and not connection.node.is_linked(connection):
            self._end_up(connection, "the node closed the connection")
            self._end_down(connection, f"no answer within {CONNECT_TIMEOUT_S:g} s")

    def _end_up(self, connection: Connection, reason: str) -> None:
        """Tell the coordinator that a connection is over, behind everything that was sent on it."""
        self._pass(
            self._cuts_up, connection.node.name, self._arrive_end_up, connection, reason, after=connection.last_up
        )

    def _arrive_end_up(self, connection: Connection, reason: str) -> None:
        if connection.coordinator_open and connection.life == self.coordinator.life and self.coordinator.alive:
            connection.coordinator_open = False
            self.coordinator.post(self.coordinator.disconnected, connection, reason)

    def _end_down(self, connection: Connection, reason: str) -> None:
        self._pass(
            self._cuts_down, connection.node.name, self._arrive_end_down, connection, reason, after=connection.last_down
        )

    def _arrive_end_down(self, connection: Connection, reason: str) -> None:
        if connection.node_open:
            connection.node_open = False
            connection.node.post(connection.node.link_down, connection, reason)

    # -- messages --------------------------------------------------------------------------------------------

    def send_up(self, connection: Connection, message: Message) -> None:
        """Send a message from a node to the coordinator."""
        self._count()
        for _ in range(self._copies()):
            if self._cuts_up and self._cuts_up.get(connection.node.name):
                if self.weather.holds:
                    self._held.append((self._cuts_up, connection.node.name, self._fly_up, (connection, message)))
            else:
                self._fly_up(connection, message)

    def send_down(self, connection: Connection, message: Message) -> None:
        """Send a message from the coordinator to a node."""
        self._count()
        for _ in range(self._copies()):
            self._send_down(connection, connection.node.hear, message)

    def _send_down(self, connection: Connection, act: Callable[..., None], *args: Any) -> None:
        if self._cuts_down and self._cuts_down.get(connection.node.name):
            if self.weather.holds:
                self._held.append((self._cuts_down, connection.node.name, self._fly_down, (connection, act, *args)))
        else:
            self._fly_down(connection, act, *args)

    def _fly_up(self, connection: Connection, message: Message) -> None:
        when = self.world.now + self._delay()
        if when > connection.last_up:
            connection.last_up = when
        elif not self.weather.reorder:
            when = connection.last_up
        self.world.at(when, self._arrive_up, connection, message)

    def _fly_down(self, connection: Connection, act: Callable[..., None], *args: Any) -> None:
        when = self.world.now + self._delay()
        if when > connection.last_down:
            connection.last_down = when
        elif not self.weather.reorder:
            when = connection.last_down
        self.world.at(when, self._arrive_down, connection, act, args)

    def _arrive_up(self, connection: Connection, message: Message) -> None:
        if connection.coordinator_open and not connection.dead and connection.life == self.coordinator.life:
            self.coordinator.post(self.coordinator.received, connection, message)

    def _arrive_down(self, connection: Connection, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if connection.node_open and not connection.dead:
            connection.node.post(act, connection, *args)

    def _count(self) -> None:
        self.messages += 1
        if self.messages > self.messages_max:
            raise Violation("few messages are sent", f"{self.messages} in {self.world.now:.0f} s")

    def _copies(self) -> int:
        weather = self.weather
        if weather.loss and self.rng.random() < weather.loss:
            return 0
        return 2 if weather.duplicate and self.rng.random() < weather.duplicate else 1

    def _delay(self) -> float:
        weather = self.weather
        delay = weather.delay_s * (1 + weather.spread * (self.rng.random() - 0.5))
        if weather.straggle and self.rng.random() < weather.straggle:
            delay += weather.straggle_s * self.rng.random()
        return delay

    # -- partitions ------------------------------------------------------------------------------------------

    def cut(self, name: str, *, up: bool, down: bool) -> None:
        """Let nothing more through between a node and the coordinator, one way or both."""
        if up:
            self._cuts_up[name] = self._cuts_up.get(name, 0) + 1
        if down:
            self._cuts_down[name] = self._cuts_down.get(name, 0) + 1

    def mend(self, name: str, *, up: bool, down: bool) -> None:
        """Take one cut away, and deliver what has waited for that."""
        if up:
            self._cuts_up[name] -= 1
        if down:
            self._cuts_down[name] -= 1
        held, self._held = self._held, []
        for cuts, where, act, args in held:
            if cuts.get(where):
                self._held.append((cuts, where, act, args))
            else:
                act(*args)

    def _pass(self, cuts: dict[str, int], name: str, act: Callable[..., None], *args: Any, after: float) -> None:
        """Bring the end of a connection through, however long that takes."""
        if cuts.get(name):
            self._held.append((cuts, name, act, args))
        else:
            self.world.at(max(self.world.now + self._delay(), after), act, *args)
