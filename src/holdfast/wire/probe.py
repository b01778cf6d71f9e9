"""Whether the process that listened at an address is surely gone: its host is alive and refuses connections there."""

from __future__ import annotations

import asyncio
import socket

from holdfast.wire.address import Endpoint

#: How often, and how far apart, an address must refuse connections.
KNOCKS, KNOCK_PAUSE_S, KNOCK_S = 2, 0.05, 1.0


def is_ours(host: str) -> bool:
    """Return whether a numeric address belongs to this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True


async def is_gone(endpoint: Endpoint) -> bool:
    """Return whether no process listens there any more; a lost packet or a cut cable proves nothing."""
    for knock in range(KNOCKS):
        if knock:
            await asyncio.sleep(KNOCK_PAUSE_S)
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(endpoint.host, endpoint.port), KNOCK_S)
        except ConnectionRefusedError:
            continue
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False
    return True
