"""What is sent to a host that is gone is given up by the kernel after a few leases."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.messages import CODEC
from holdfast.wire.address import Endpoint
from holdfast.wire.link import Link
from holdfast.wire.silence import UNACKNOWLEDGED_S


def timeout_ms(connection: Any) -> int:
    sock = connection._transport.get_extra_info("socket")
    return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))


def test_both_ends_of_a_link_have_the_limit() -> None:
    async def main() -> None:
        coordinator = Coordinator(b"")
        endpoint = await coordinator.open(Endpoint("127.0.0.1", 0))
        link = await Link.connect(endpoint, CODEC, b"", lambda _: None, lambda _: None)
        while not coordinator.machine.sessions:
            await asyncio.sleep(0)
        [peer] = coordinator.machine.sessions

        assert timeout_ms(link) == timeout_ms(peer) == UNACKNOWLEDGED_S * 1000
        link.close()
        await coordinator.close()

    asyncio.run(main())
