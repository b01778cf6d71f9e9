"""What is sent to a host that is gone is given up by the kernel after a few leases."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.messages import CODEC
from holdfast.wire.address import Endpoint
from holdfast.wire.link import Link
from holdfast.wire.silence import UNACKNOWLEDGED_S, watch_silence


def option(connection: Any, level: int, name: int) -> int:
    sock = connection._transport.get_extra_info("socket")
    return int(sock.getsockopt(level, name))


def timeout_ms(connection: Any) -> int:
    return option(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_a_blocking_connection_has_the_limit_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        watch_silence(sock)

        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_S * 1000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    one, other = socket.socketpair()
    with one, other:
        watch_silence(one)  # no TCP: nothing to set, and no error


def test_a_link_that_is_abandoned_does_not_say_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        coordinator = Coordinator(b"")
        endpoint = await coordinator.open(Endpoint("127.0.0.1", 0))
        link = await Link.connect(endpoint, CODEC, b"", lambda _: None, lambda _: None)
        while not coordinator.machine.sessions:
            await asyncio.sleep(0)
        ends: list[str] = []
        monkeypatch.setattr(coordinator, "closed", lambda _, reason: ends.append(reason))

        link.abandon()
        while not ends:
            await asyncio.sleep(0)

        assert "reset by peer" in ends[0]  # a packet that is sent once, and not again if it is lost
        await coordinator.close()

    asyncio.run(main())


def test_both_ends_of_a_link_have_the_limit() -> None:
    async def main() -> None:
        coordinator = Coordinator(b"")
        endpoint = await coordinator.open(Endpoint("127.0.0.1", 0))
        link = await Link.connect(endpoint, CODEC, b"", lambda _: None, lambda _: None)
        while not coordinator.machine.sessions:
            await asyncio.sleep(0)
        [peer] = coordinator.machine.sessions

        assert timeout_ms(link) == timeout_ms(peer) == UNACKNOWLEDGED_S * 1000
        assert all(option(each, socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in (link, peer))
        link.close()
        await coordinator.close()

    asyncio.run(main())
