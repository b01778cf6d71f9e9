"""Connections as the kernel shows them."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from holdfast.workers.connections import Connection, own_addresses, parse_connections, probe, silent_links

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TAIL = "1 00000000fcd14e41 100 0 0 10 0"
little = pytest.mark.skipif(sys.byteorder != "little", reason="the sample is of a little-endian machine")


@little
def test_connections_are_read_with_how_often_their_data_was_repeated() -> None:
    text = (
        HEAD
        + f"   0: 0100007F:9397 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 17 {TAIL}\n"
        + f"   1: 0200600A:A1B2 0300600A:9C40 01 00000400:00000000 01:00000190 00000007 0 0 18 {TAIL}\n"
        + f"   2: 0200600A:A1B3 0300600A:9C40 02 00000001:00000000 01:00000064 00000003 0 0 19 {TAIL}\n"
        + f"   3: 0200600A:A1B4 0300600A:9C40 06 00000000:00000000 03:00000064 00000000 0 0 0 {TAIL}\n"
    )

    assert parse_connections(text) == [
        Connection("10.96.0.2", "10.96.0.3", 7, 18),
        Connection("10.96.0.2", "10.96.0.3", 3, 19),
    ]


@little
def test_an_ipv4_address_in_an_ipv6_one_is_that_address() -> None:
    local = "0000000000000000FFFF00000200600A:A1B2"
    remote = "000080FE00000000FF005450A5CA37FE:9C40"
    (found,) = parse_connections(
        f"{HEAD}   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 0 0 18 {TAIL}\n"
    )

    assert (found.local, found.remote) == ("10.96.0.2", "fe80::5054:ff:fe37:caa5")


def test_connections_within_a_host_are_no_links() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert "127.0.0.1" not in {link.remote for link in silent_links({0: os.getpid()}, retries_min=0)}
        assert "127.0.0.1" not in own_addresses([os.getpid()])


def test_a_host_that_refuses_a_connection_has_answered() -> None:
    assert probe(["127.0.0.1"], timeout_s=30.0) == {"127.0.0.1"}


def test_a_process_that_has_ended_has_no_links() -> None:
    assert silent_links({0: 2**22 + 1}, retries_min=0) == []
