"""`holdfast chaos` on real launched jobs, whose processes are really killed and stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.chaos import packets
from holdfast.chaos.owner import check_journals, check_process, own_uids
from holdfast.errors import UsageError
from holdfast.events.entry import Entry, encode
from holdfast.events.index import note_journal
from holdfast.wire.ports import HeldPort
from tests.cli.conftest import Invoke, environ, invoke, start
from tests.processes import finish

__all__ = ["environ", "invoke", "start"]

PATIENCE_S = 240.0
SCRIPT = """
import time, holdfast
for step in range(100_000):
    holdfast.heartbeat(step)
    time.sleep(0.02)
"""


@pytest.fixture
def job(start: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., list[subprocess.Popen[str]]]]:
    """Launches a job of several nodes on this host; it ends with the test."""
    held = HeldPort()
    Path("train.py").write_text(SCRIPT)
    agents: list[subprocess.Popen[str]] = []

    def launch(nodes: int) -> list[subprocess.Popen[str]]:
        where = ("--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{held.port}", "--rdzv-id", "mine")
        flags = ("--nnodes", f"1:{nodes}", "--max-restarts", "9", "--quiet", "--preload", "none")
        agents.extend(start("launch", *where, *flags, "train.py") for _ in range(nodes))
        return agents

    yield launch
    for agent in agents:
        agent.terminate()
    for agent in agents:
        finish(agent)
    held.close()


def wait_steps(ranks: int) -> None:
    """Wait until so many ranks of the job step."""
    from holdfast.errors import HoldfastError
    from holdfast.view.reading import open_run

    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            opened = open_run("mine")
            opened.look()
            if len(opened.progress()) == ranks:
                return
        except HoldfastError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{ranks} ranks never stepped")


def test_a_job_is_struck_and_the_judge_says_how_it_recovered(
    invoke: Invoke, job: Callable[..., list[subprocess.Popen[str]]]
) -> None:
    agents = job(2)
    wait_steps(2)

    plan = invoke("chaos", "min", "--plan", "kill-worker,kill-agent", "--seed", "7", "--dry-run", "--json")
    assert plan.code == 0, plan.err
    assert plan.data["run"] == "mine"
    assert all(agent.poll() is None for agent in agents), "a plan alone strikes nothing"

    said = invoke("chaos", "--plan", "kill-worker,kill-agent", "--count", "3", "--every", "1s", "--seed", "7", "--json")

    assert said.code == 0, said.err
    report = said.data
    kinds = [(fault["kind"], fault["outcome"]) for fault in report["faults"]]
    assert sorted(kinds[:2]) == [("kill-agent", "recovered"), ("kill-worker", "recovered")], said.err
    assert [fault["kind"] for fault in plan.data["faults"]][:3] == [kind for kind, _ in kinds]
    lost = next(fault for fault in report["faults"] if fault["kind"] == "kill-agent")
    assert (lost["ranks_before"], lost["ranks_after"]) == (2, 1)
    assert (report["job"], report["orphans"], report["good"]) == ("running", [], True)
    assert sum(agent.poll() == -signal.SIGKILL for agent in agents) == 1


def test_ctrl_c_lets_what_is_frozen_go_on(
    job: Callable[..., list[subprocess.Popen[str]]], start: Callable[..., subprocess.Popen[str]]
) -> None:
    [agent] = job(1)
    wait_steps(1)
    chaos = start("chaos", "mine", "--plan", "freeze,kill-agent", "--for", "10m", "--every", "1s", "--seed", "7")
    assert chaos.stderr is not None
    line = next(line for line in chaos.stderr if "freeze, rank 0" in line)
    worker = psutil.Process(int(line.split("(pid ")[1].split(")")[0]))
    assert worker.ppid() == agent.pid
    wait_status(worker, stopped=True)

    chaos.send_signal(signal.SIGINT)
    out, _ = finish(chaos)

    assert chaos.returncode == 130
    wait_status(worker, stopped=False)
    assert "the job: goes on" in out


def wait_status(process: psutil.Process, *, stopped: bool) -> None:
    until = time.monotonic() + PATIENCE_S
    while (process.status() == psutil.STATUS_STOPPED) is not stopped:
        assert time.monotonic() < until
        time.sleep(0.02)


def forge(run: str, pid: int, folder: Path) -> Path:
    """Write a journal that claims a process as its agent."""
    folder.mkdir(exist_ok=True)
    journal = folder / "journal.jsonl"
    line = Entry(time=time.time(), kind="agent_started", run=run, host=os.uname().nodename, node="n", pid=pid)
    journal.write_bytes(encode(line) + b"\n")
    note_journal(run, journal, os.uname().nodename, pid=pid)
    return journal


def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    another = frozenset({os.getuid() + 1})
    journal = tmp_path / "journal.jsonl"
    journal.touch()

    with pytest.raises(UsageError, match=r"'j' is not your job: its process \d+ runs as"):
        check_process("j", os.getpid(), another)
    with pytest.raises(UsageError, match=r"'j' is not your job: .* belongs to"):
        check_journals("j", [journal], another)
    assert check_process("j", os.getpid()).pid == os.getpid()
    check_journals("j", [journal])


def test_sudo_counts_as_the_user_that_called_it_only_for_root() -> None:
    assert (1234 in own_uids({"SUDO_UID": "1234"})) == (os.geteuid() == 0)
    assert own_uids({}) == {os.getuid()}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a process as another user")
def test_a_job_of_another_user_is_refused_also_to_root(invoke: Invoke, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], user=65534) as process:
        try:
            journal = forge("theirs", process.pid, tmp_path / "theirs")
            said = invoke("chaos", "theirs")
            assert (said.code, "its process" in said.err, "runs as nobody" in said.err) == (2, True, True), said.err

            os.chown(journal, 65534, -1)
            said = invoke("chaos", "theirs")
            assert (said.code, "belongs to nobody" in said.err) == (2, True), said.err
            assert process.poll() is None
        finally:
            process.kill()


def test_a_fault_that_needs_root_says_so(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            forge("mine", process.pid, tmp_path / "mine")
            monkeypatch.setattr(packets.os, "geteuid", lambda: 1000)
            said = invoke("chaos", "mine", "--plan", "cut")
            assert (said.code, "needs root" in said.err) == (2, True), said.err
        finally:
            process.kill()


def test_mistakes_are_told(invoke: Invoke) -> None:
    assert "no run is live on this host" in invoke("chaos").err
    assert "there is no fault 'explode'" in invoke("chaos", "--plan", "explode").err


# -- packets -----------------------------------------------------------------------------------------------------------

CAN_CUT = os.geteuid() == 0 and all(map(shutil.which, ("nft", "nsenter", "ip")))


@pytest.fixture
def namespace() -> Iterator[tuple[str, str, str]]:
    """A network namespace with a line to this one: its name, its address and ours."""
    name, net = f"hfc{os.getpid() % 100000}", os.getpid() % 250
    inside, outside = f"10.97.{net}.2", f"10.97.{net}.1"
    commands = [
        f"netns add {name}",
        f"link add {name}v type veth peer name v0 netns {name}",
        f"addr add {outside}/30 dev {name}v",
        f"link set {name}v up",
        f"-n {name} addr add {inside}/30 dev v0",
        f"-n {name} link set v0 up",
        f"-n {name} link set lo up",
    ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no network namespaces here: {done.stderr}")
        yield name, inside, outside
    finally:
        subprocess.run(["ip", "link", "del", f"{name}v"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


PING = """
import socket, sys, time
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    sock.sendall(b"x")
    time.sleep(0.02)
"""


@pytest.mark.skipif(not CAN_CUT, reason="needs root, nft, nsenter and iproute2")
@pytest.mark.parametrize("whose", ["the namespace of the node", "the namespace of this command"])
def test_a_cut_stops_packets_without_a_reset_until_it_is_undone(namespace: tuple[str, str, str], whose: str) -> None:
    import socket
    import sys

    name, inside, outside = namespace
    own = whose == "the namespace of the node"
    address = outside if own else inside
    server = socket.create_server((outside, 0)) if own else None
    if server is None:  # the server is in the other namespace, the node here
        listen = f"import socket; s = socket.create_server(('{inside}', 0)); print(s.getsockname()[1], flush=True)\n"
        listen += "c, _ = s.accept()\nwhile c.recv(1):\n    print('x', end='', flush=True)\n"
        prefix = ["ip", "netns", "exec", name]
        far = subprocess.Popen([*prefix, sys.executable, "-c", listen], stdout=subprocess.PIPE)
        assert far.stdout is not None
        port = int(far.stdout.readline())
        near = subprocess.Popen([sys.executable, "-c", PING, address, str(port)])
        read = far.stdout.fileno()
    else:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", PING, address, str(server.getsockname()[1])]
        near, far = subprocess.Popen(command), None
        connection, _ = server.accept()
        read = connection.fileno()
    try:
        assert os.read(read, 1) == b"x"
        cut = packets.Cut(near.pid, [psutil.Process(near.pid)])
        try:
            drain(read)
        finally:
            cut.undo()
        assert os.read(read, 1) == b"x", "the connection lives on"
        assert near.poll() is None
    finally:
        for process in filter(None, (near, far)):
            process.kill()
            process.wait()
        if far is not None and far.stdout is not None:
            far.stdout.close()
        if server is not None:
            connection.close()
            server.close()


def drain(descriptor: int) -> None:
    """Read until nothing has come for half a second: packets that were on their way still arrive."""
    import select

    until = time.monotonic() + PATIENCE_S
    while select.select([descriptor], [], [], 0.5)[0]:
        assert os.read(descriptor, 65536), "the connection was closed"
        assert time.monotonic() < until, "packets still arrive"


@pytest.mark.skipif(not CAN_CUT, reason="needs root, nft, nsenter and iproute2")
def test_a_node_that_shares_its_network_cannot_be_cut() -> None:
    with pytest.raises(packets.UnavailableError, match="freeze-node"):
        packets.Cut(os.getpid(), [])
