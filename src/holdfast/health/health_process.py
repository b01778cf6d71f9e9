"""The health process: a small process that answers at the health port on behalf of the agent.

Why a process of its own: a thread in the agent cannot answer while the agent is stopped or C code holds the
interpreter's lock, which is when the answer matters most. While the agent copies the output of many workers, a thread
would also wait for that lock.

Started by its path (`python -S .../health_process.py SETTINGS`) with the listening socket and a socket to the agent. It
imports little, holds no secrets and has no environment. It ends when the agent closes the socket or dies. One loop, no
threads; a slow client delays no other client.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Run by path: neither our folder nor what lies beside our package may shadow the standard library.
    _folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all the rest
    if sys.path[:1] == [_folder]:
        del sys.path[0]
    sys.path.append(os.path.dirname(os.path.dirname(_folder)))  # noqa: PTH120

from holdfast.health import routes
from holdfast.health.http import BadRequestError, Reply, Request, RequestReader, render
from holdfast.health.liveness import Liveness, Part
from holdfast.health.protocol import RECV_BYTES, FrameCutter, Limits, Settings, pack

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROL_BYTES = 256 * 1024
#: How much is done for one client, or how many are let in, before the others get their turn.
REQUESTS_PER_TURN = 16
ACCEPTS_PER_TURN = 32
#: How often the loop looks for clients whose time is up.
SWEEP_S = 0.25
#: After a refusal, how long and how much is still read and dropped, so that the client gets to read why.
LINGER_S = 1.0
LINGER_BYTES_MAX = 256 * 1024
#: Descriptors that are not clients.
FILES_RESERVED = 32
#: How many of our own mistakes are reported to the agent, each with the end of its traceback.
MISTAKES_TOLD_MAX = 10
MISTAKE_CHARACTERS_MAX = 4000


class Client:
    """One connection: either reading a request, waiting for the agent, writing a reply, or lingering."""

    __slots__ = ("behind", "closing", "deadline", "dropped", "ended", "out", "reader", "request", "sock", "waits_for")

    def __init__(self, sock: socket.socket, limits: Limits, now: float) -> None:
        self.sock = sock
        self.reader = RequestReader(limits.head_bytes_max)
        self.deadline = now + limits.request_timeout_s
        self.out = memoryview(b"")
        #: The question that its request waits for.
        self.waits_for = ""
        self.request: Request | None = None
        #: Whether the connection ends once `out` is written; what arrives until then is dropped and counted.
        self.closing = False
        self.dropped = 0
        #: Whether the other side will send no more.
        self.ended = False
        #: Whether it has sent more requests than one turn's worth; no more is read until they are answered.
        self.behind = False

    @property
    def is_reading(self) -> bool:
        """Whether it may go on with its next request."""
        return not (self.out or self.waits_for or self.closing)


class HealthProcess:
    """The loop over the listener, the agent and the clients."""

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        self._agent = settings.agent
        self._policy = settings.policy
        self._liveness = Liveness((), settings.timeout_s)
        self._listener = socket.socket(fileno=settings.listener)
        self._control = socket.socket(fileno=settings.control)
        self._frames = FrameCutter()
        self._epoll = select.epoll()
        #: In the order in which they last had an answer: the first has waited longest.
        self._clients: OrderedDict[int, Client] = OrderedDict()
        self._clients_max = _clients_max(settings.limits.connections_max)
        #: Clients with whole requests left over from their last turn.
        self._unfinished: deque[Client] = deque()
        #: Questions that the agent has been asked and not answered yet; each is asked once at a time.
        self._open: set[str] = set()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._mistakes = 0

    def run(self) -> None:
        """Serve until the agent is gone."""
        self._hear()  # the agent speaks first: no client is answered before its state is known
        self._watch(self._listener, self._accept)
        self._watch(self._control, self._hear)
        self._watch_agent()
        sweep_at = 0.0
        while True:
            timeout = 0.0 if self._unfinished else SWEEP_S if self._clients else None
            for fd, events in self._epoll.poll(timeout):
                if (handler := self._handlers.get(fd)) is not None:
                    handler()
                elif (client := self._clients.get(fd)) is not None:
                    self._guarded(client, self._on_client, client, events)
            for _ in range(len(self._unfinished)):
                client = self._unfinished.popleft()
                client.behind = False
                self._guarded(client, self._serve, client)
            if (now := time.monotonic()) >= sweep_at:
                sweep_at = now + SWEEP_S
                self._sweep(now)

    def _guarded(self, client: Client, act: Callable[..., None], *arguments: Any) -> None:
        """Do something for a client. A mistake of ours closes that connection and is reported to the agent."""
        try:
            act(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, the others are still answered
            self._drop(client)
            self._report()

    def _report(self) -> None:
        """Report the exception that is being handled to the agent, a few times at most."""
        self._mistakes += 1
        if self._mistakes > MISTAKES_TOLD_MAX:
            return
        import traceback  # takes long, and is hardly ever needed

        frame = pack({"mistake": traceback.format_exc()[-MISTAKE_CHARACTERS_MAX:]})
        try:
            if self._control.send(frame) < len(frame):
                sys.exit("half a frame was sent: the agent does not read")
        except BlockingIOError:
            pass  # it has not read for long, which its liveness shows

    # -- the agent -------------------------------------------------------------------------------------------------

    def _watch(self, sock: socket.socket, handler: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._handlers[sock.fileno()] = handler
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _watch_agent(self) -> None:
        """End with the agent even where another process holds the other end of the control socket, as a fork does."""
        pidfd = os.pidfd_open(os.getppid())
        if os.getppid() != self._agent:
            sys.exit(0)  # it was gone before we looked
        self._handlers[pidfd] = lambda: sys.exit(0)
        self._epoll.register(pidfd, select.EPOLLIN)

    def _hear(self) -> None:
        """Read what the agent sends; end when it has closed the socket."""
        try:
            data = self._control.recv(CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            sys.exit(0)
        for head, body in self._frames.feed(data):
            if "parts" in head:
                self._liveness = self._liveness._replace(parts=tuple(Part(*part) for part in head["parts"]))
            else:
                self._told(head, body)

    def _told(self, head: dict[str, Any], body: bytes) -> None:
        kind = head["answer"]
        self._open.discard(kind)
        for client in [each for each in self._clients.values() if each.waits_for == kind]:
            self._guarded(client, self._pass_on, client, head, body)

    def _pass_on(self, client: Client, head: dict[str, Any], body: bytes) -> None:
        assert client.request is not None
        self._reply(client, client.request, routes.agents_reply(client.request, head, body))
        self._serve(client)

    def _ask(self, kind: str) -> None:
        """Ask the agent, unless it is answering this already: many clients get one answer."""
        if kind in self._open:
            return
        try:
            self._control.send(pack({"ask": kind}))
            self._open.add(kind)
        except BlockingIOError:
            pass  # it has not read for long; the client's time will run out
        except OSError:
            sys.exit(0)

    def _look(self, now: float) -> Liveness:
        liveness = self._liveness
        return liveness._replace(stopped=_is_stopped(self._agent)) if liveness.trouble(now) else liveness

    # -- clients ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it left before we looked
            except OSError:
                self._make_room()
                time.sleep(0.01)  # the host is out of descriptors or memory: do not make it worse
                return
            if len(self._clients) >= self._clients_max:
                self._make_room()
            sock.setblocking(False)
            client = Client(sock, self._limits, time.monotonic())
            self._clients[sock.fileno()] = client
            self._epoll.register(sock.fileno(), select.EPOLLIN)
            # A request mostly comes with its connection.
            self._guarded(client, self._on_client, client, select.EPOLLIN)

    def _make_room(self) -> None:
        if self._clients:
            self._drop(next(iter(self._clients.values())))

    def _on_client(self, client: Client, events: int) -> None:
        if events & select.EPOLLOUT and client.out:
            self._write(client)
        elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not self._read(client):
            return
        self._serve(client)

    def _read(self, client: Client) -> bool:
        """Read what arrived; return whether the connection stays open."""
        try:
            data = client.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            self._drop(client)
            return False
        if client.closing:
            client.dropped += len(data)
            if not data or client.dropped > LINGER_BYTES_MAX:
                self._drop(client)
                return False
            return True
        if not data:
            client.ended = True
        elif client.reader.is_empty:
            client.deadline = time.monotonic() + self._limits.request_timeout_s
        client.reader.feed(data)
        return True

    def _serve(self, client: Client) -> None:
        """Answer the requests that are there, up to one turn's worth."""
        if client.sock.fileno() < 0:
            return  # it was dropped meanwhile
        for _ in range(REQUESTS_PER_TURN):
            if not client.is_reading:
                break
            try:
                request = client.reader.take()
            except BadRequestError as error:
                self._refuse(client, error.status, error.sentence)
                break
            if request is None:
                if client.ended:
                    self._drop(client)
                    return
                break
            self._handle(client, request)
        else:
            client.behind = True
            self._unfinished.append(client)
        self._set_interest(client)

    def _handle(self, client: Client, request: Request) -> None:
        now = time.monotonic()
        answer = routes.answer(request, self._look(now), self._policy, now)
        if isinstance(answer, Reply):
            self._reply(client, request, answer)
        else:
            client.request, client.waits_for = request, answer.kind
            client.deadline = now + self._limits.answer_timeout_s
            self._ask(answer.kind)

    def _refuse(self, client: Client, status: int, sentence: str) -> None:
        self._reply(client, Request("GET", "/"), routes.refusal(None, status, sentence))

    def _reply(self, client: Client, request: Request, reply: Reply) -> None:
        client.request, client.waits_for = None, ""
        client.closing = not request.keep_alive
        client.out = memoryview(render(reply, head_only=request.method == "HEAD", keep_alive=request.keep_alive))
        client.deadline = time.monotonic() + self._limits.request_timeout_s
        if client.sock.fileno() in self._clients:
            self._clients.move_to_end(client.sock.fileno())
        self._write(client)

    def _write(self, client: Client) -> None:
        try:
            client.out = client.out[client.sock.send(client.out) :]
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if not client.out:
            self._sent(client)

    def _sent(self, client: Client) -> None:
        now = time.monotonic()
        if not client.closing:
            client.deadline = now + (
                self._limits.idle_timeout_s if client.reader.is_empty else self._limits.request_timeout_s
            )
            return
        client.deadline = now + LINGER_S
        try:
            client.sock.shutdown(socket.SHUT_WR)
        except OSError:
            client.ended = True
        if client.ended:
            self._drop(client)

    def _set_interest(self, client: Client) -> None:
        """Read from a client only after it has read its answers."""
        if client.sock.fileno() < 0:
            return
        if client.out:
            events = select.EPOLLOUT
        elif client.waits_for or client.ended or client.behind:
            events = 0  # a hang-up is told all the same
        else:
            events = select.EPOLLIN
        self._epoll.modify(client.sock.fileno(), events)

    def _sweep(self, now: float) -> None:
        for client in [each for each in self._clients.values() if each.deadline <= now]:
            self._guarded(client, self._time_out, client, now)

    def _time_out(self, client: Client, now: float) -> None:
        if client.waits_for:
            assert client.request is not None
            reply = routes.unanswered(client.request, self._look(now), self._limits.answer_timeout_s, now)
            self._reply(client, client.request, reply)
            self._serve(client)
        elif client.is_reading and not client.reader.is_empty:
            self._refuse(client, 408, f"the request took longer than {self._limits.request_timeout_s:g} s to arrive")
            self._set_interest(client)
        else:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.sock.fileno(), None)
        client.sock.close()


def _clients_max(wanted: int) -> int:
    """Return how many clients there can be, after raising the limit of descriptors as far as that is allowed."""
    files, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_RESERVED
    if files != resource.RLIM_INFINITY and files < needed:
        files = needed if allowed == resource.RLIM_INFINITY else min(needed, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, allowed))
    return max(1, min(wanted, files - FILES_RESERVED)) if files != resource.RLIM_INFINITY else wanted


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def main(text: str) -> None:
    """Serve as the settings say."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        # A signal to all processes of a job does not end it: it answers until the agent has ended.
        signal.signal(number, signal.SIG_IGN)
    HealthProcess(Settings.decode(text)).run()


if __name__ == "__main__":
    main(sys.argv[1])
