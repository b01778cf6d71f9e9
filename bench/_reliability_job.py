"""One live job on hosts of its own: started, struck and ended; everything that it starts carries a mark."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from bench._hosts import Hosts
from bench._steps import StepBook, are_stepping
from bench.scripts.jobs import NAME_SERVER

SCRIPT = Path(__file__).parent / "scripts" / "reliable.py"
MARK = "HOLDFAST_BENCH_MARK"
PLAIN, IN_PROCESS, TORCHRUN = "plain", "in process", "torchrun"
#: How long a job may take to step on all hosts, and agents to end when they are asked to.
START_CAP_S, END_S, GONE_S = 180.0, 15.0, 5.0
LOOK_S = 0.1
TEMPLATE_FACTS = ("template_prepared", "template_ready", "template_unusable")
PORT = 29_400
ETCD = shutil.which("etcd", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@dataclass(frozen=True)
class Setting:
    """How a job is started."""

    way: str
    hosts: int = 3
    #: Where the coordinator is: embedded (in the agent of host 1), serve or etcd.
    where: str = "embedded"
    lease: str = "5s"
    flags: tuple[str, ...] = ()


class NotStartedError(RuntimeError):
    """The job never stepped on all hosts."""


class Job:
    """A job; inside its context it runs, and afterwards nothing of it is left."""

    def __init__(self, setting: Setting, hosts: Hosts) -> None:
        self.setting, self.hosts = setting, hosts
        self.all = list(range(1, setting.hosts + 1))
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-reliability-"))
        self.book = StepBook(self.folder)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._mark = secrets.token_hex(8)
        self._others: list[subprocess.Popen[bytes]] = []
        self._stopped: set[int] = set()
        #: Hosts whose agents were told to end.
        self._drained: set[int] = set()
        (self.folder / "secret").write_text(secrets.token_hex(32))
        (self.folder / "secret").chmod(0o600)

    # -- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Job:
        try:
            if self.setting.where == "serve":
                self.serve()
            elif self.setting.where == "etcd":
                self._start_etcd()
            for host in self.all:
                self.start(host)
                if host == 1 and (self.setting.way == TORCHRUN or self.setting.where == "etcd"):
                    self._wait_first()
            self.wait_whole()
            self._wait_templates()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo()
        processes = [*self.agents.values(), *self._others]
        for process in processes:
            _signal(process.pid, signal.SIGTERM)
        until = time.monotonic() + END_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
        for process in processes:
            process.kill()
            process.wait()
        for pid in self._marked():
            _signal(pid, signal.SIGKILL)
        if not os.environ.get("RELIABILITY_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _undo(self) -> None:
        """Take back what lasts: stopped processes, cut links, lost packets, a partition."""
        self.go_on(list(self._stopped))
        for host in self.all:
            self.hosts.heal(host)
            self.hosts.unfilter(host)
        self.hosts.move(self.all, "a")

    def mend(self) -> None:
        """Make the job whole again after a fault; raises `NotStartedError` if that cannot be."""
        self._undo()
        if self.setting.where == "serve" and self._others[-1].poll() is not None:
            self.serve()
        for host in self._drained:
            self.agents[host].wait(END_S)
        self._drained.clear()
        for host in self.all:
            if self.agents[host].poll() is not None:
                self.start(host)
        self.wait_whole()

    def wait_whole(self, cap_s: float = START_CAP_S) -> None:
        """Wait until all hosts step together; raises `NotStartedError`."""
        until = time.monotonic() + cap_s
        while not self.is_stepping(self.all, len(self.all)):
            if time.monotonic() > until:
                raise NotStartedError(self.tail())
            time.sleep(LOOK_S)

    def is_stepping(self, hosts: Sequence[int], world: int | None = None) -> bool:
        """Whether these hosts step now."""
        self.book.update()
        return are_stepping(self.book.steps, hosts, time.monotonic(), world)

    # -- what is done to it ------------------------------------------------------------------------------------------

    def start(self, host: int, *flags: str) -> None:
        """Start the agent of a host."""
        self.agents[host] = self._popen(host, [*self._launcher(host), *flags, *self._program(host)])

    def serve(self) -> None:
        """Start a coordinator of its own on this machine, or start it again."""
        where = f"0.0.0.0:{PORT + os.getpid() % 1000}"
        flags = ("--secret-file", f"{self.folder}/secret", "--state-dir", f"{self.folder}/records")
        self._others.append(self._popen(0, [sys.executable, "-m", "holdfast", "serve", where, *flags]))

    def kill_serve(self) -> None:
        """SIGKILL it."""
        self._others[-1].kill()
        self._others[-1].wait()

    def worker(self, host: int) -> int:
        """Return the worker that stepped last on a host."""
        self.book.update()
        return self.book.steps[host][-1].pid

    def family(self, host: int) -> list[int]:
        """Return the agent of a host and all its processes."""
        return _family(self.agents[host].pid)

    def kill_node(self, host: int) -> None:
        """SIGKILL an agent and everything that it has started."""
        for pid in self.family(host):
            _signal(pid, signal.SIGKILL)
        self.agents[host].wait()

    def drain(self, host: int) -> None:
        """SIGTERM an agent, as a scheduler does."""
        _signal(self.agents[host].pid, signal.SIGTERM)
        self._drained.add(host)

    def stop(self, pids: Sequence[int]) -> None:
        """SIGSTOP processes; they go on at the end at the latest."""
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
            self._stopped.add(pid)

    def go_on(self, pids: Sequence[int]) -> None:
        """SIGCONT them."""
        for pid in pids:
            _signal(pid, signal.SIGCONT)
            self._stopped.discard(pid)

    def carrier(self) -> int:
        """Return the host whose agent carries the coordinator: every agent may listen, and the others are with one.

        torchrun's is on the first host.
        """
        return 1 if self.setting.way == TORCHRUN else max(self.all, key=self._callers)

    def tail(self, lines: int = 8) -> str:
        """Return the last lines of every host's log."""
        logs = sorted(self.folder.glob("host-*.log"))
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs
        )

    # -- starting ----------------------------------------------------------------------------------------------------

    def _launcher(self, host: int) -> list[str]:
        setting = self.setting
        nodes = (
            "--nnodes",
            f"2:{setting.hosts}",
            "--nproc-per-node",
            "1",
            "--max-restarts",
            "1000",
            "--rdzv-id",
            "rel",
        )
        own = ("--local-addr", self.hosts.address(host))
        endpoint = f"{self.hosts.address(1)}:{PORT}"
        if setting.way == TORCHRUN:
            is_host = ("--rdzv-conf", f"is_host={int(host == 1)}")
            where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
            return [sys.executable, "-m", "torch.distributed.run", *nodes, *own, *where, *is_host]
        if setting.where != "embedded":
            endpoint = f"{self.hosts.way_out(host)}:{PORT + os.getpid() % 1000}"
        backend = "etcd" if setting.where == "etcd" else "holdfast"
        where = ("--rdzv-backend", backend, "--rdzv-endpoint", endpoint)
        rest = ("--json", "--secret-file", f"{self.folder}/secret", "--lease", setting.lease, "--shutdown-timeout", "3")
        return [sys.executable, "-m", "holdfast", "launch", *nodes, *own, *where, *rest, *setting.flags]

    def _program(self, host: int) -> list[str]:
        way = "in-process" if self.setting.way == IN_PROCESS else "plain"
        return [str(SCRIPT), way, str(self.folder), str(host)]

    def _popen(self, host: int, command: list[str]) -> subprocess.Popen[bytes]:
        home = self.folder / f"home-{host}"
        home.mkdir(exist_ok=True)
        environ = {
            **os.environ,
            **NAME_SERVER,
            MARK: self._mark,
            "HOME": str(home),
            "HOLDFAST_HOME": str(home / "state"),
            "TMPDIR": str(home),
            "GLOO_SOCKET_IFNAME": "v0",
            "OMP_NUM_THREADS": "1",
        }
        prefix = self.hosts.prefix(host) if host else []
        with (self.folder / f"host-{host}.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=home,
                start_new_session=True,
            )

    def _start_etcd(self) -> None:
        assert ETCD is not None
        port = PORT + os.getpid() % 1000
        client, peer = f"http://0.0.0.0:{port}", f"http://127.0.0.1:{port + 2000}"
        flags = ["--data-dir", f"{self.folder}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
        flags += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._others.append(self._popen(0, [ETCD, *flags, "--initial-cluster", f"default={peer}"]))
        until = time.monotonic() + START_CAP_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            time.sleep(LOOK_S)
        raise NotStartedError("etcd does not listen")

    def _wait_first(self) -> None:
        """Wait until the first agent listens: it carries the coordinator, or torchrun's store."""
        until = time.monotonic() + START_CAP_S
        while not self._listens(1):
            if time.monotonic() > until or self.agents[1].poll() is not None:
                raise NotStartedError(self.tail())
            time.sleep(LOOK_S)

    def _listens(self, host: int) -> bool:
        """Whether the agent of a host listens; its workers may, too."""
        return bool(self._ports(host))

    def _ports(self, host: int) -> set[str]:
        """Return the ports at which the agent of a host listens."""
        mine = f"pid={self.agents[host].pid},"
        return {line.split()[3].rpartition(":")[2] for line in self._sockets(host, "-Hltnp") if mine in line}

    def _callers(self, host: int) -> int:
        """Count the other hosts that are connected to the agent of a host."""
        ports = self._ports(host)
        ends = [line.split()[2:4] for line in self._sockets(host, "-Htn", "state", "established")]
        callers = {theirs.rpartition(":")[0].strip("[]") for ours, theirs in ends if ours.rpartition(":")[2] in ports}
        return len({caller.removeprefix("::ffff:") for caller in callers} & {*map(self.hosts.address, self.all)})

    def _sockets(self, host: int, *flags: str) -> list[str]:
        command = [*self.hosts.prefix(host), "ss", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def _wait_templates(self) -> None:
        """Wait until our agents have imported torch in their templates, as in a job that has run for a while."""
        if self.setting.way == TORCHRUN:
            return
        until = time.monotonic() + START_CAP_S
        for host in self.all:
            log = self.folder / f"host-{host}.log"
            while not any(kind in log.read_text(errors="replace") for kind in TEMPLATE_FACTS):
                if time.monotonic() > until:
                    raise NotStartedError(self.tail())
                time.sleep(LOOK_S)

    # -- what is left ------------------------------------------------------------------------------------------------

    def end_orphans(self) -> int:
        """Count processes that outlived their agents by more than a moment, and end them."""
        until = time.monotonic() + GONE_S
        while (left := self._orphans()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        return len(left)

    def _orphans(self) -> set[int]:
        """The job's processes that have no living agent, coordinator or etcd above them."""
        marked = set(self._marked())
        for process in (*self.agents.values(), *self._others):
            if process.poll() is None:
                marked -= set(_family(process.pid))
        return marked

    def _marked(self) -> list[int]:
        mark, found = f"{MARK}={self._mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]
