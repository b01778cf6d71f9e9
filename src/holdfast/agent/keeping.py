"""What an agent keeps for its workers: a vault in this node's memory, for their states and for the neighbours'."""

from __future__ import annotations

from holdfast.checkpoint.memory import run_folder
from holdfast.checkpoint.vault import Vault
from holdfast.errors import HoldfastError
from holdfast.facts import facts
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.wire.address import Endpoint, is_loopback

#: How long the end of an agent may wait for a coordinator that does not answer.
CLOSE_TIMEOUT_S = 1.0


class Keeping:
    """The vault of one agent, from its first round to its end."""

    def __init__(self, handler: HoldfastRendezvousHandler) -> None:
        self._handler = handler
        # Run ids may be used again: what an older job left in memory must not be taken for ours.
        folder = run_folder(f"{handler.get_run_id()}.{handler.node}")
        self._vault = Vault(handler.get_run_id(), secret=handler.secret.key, folder=folder)

    def variables(self) -> dict[str, str]:
        """Open the vault, tell the other nodes where it is, and return what workers need to find it."""
        handler, place = self._handler, self._handler.place
        if place is None:
            return {}
        try:
            if self._vault.endpoint is None:
                tls = handler.tls.server_context() if handler.tls is not None else None
                self._vault.open(Endpoint("127.0.0.1" if is_loopback(place.address) else "", 0), tls)
            with handler.store(whole_run=True) as store:
                self._vault.announce(store, place.address)
        except HoldfastError as error:
            facts.warn("vault_closed", f"states are not kept in memory: {error}")
            return {}
        return self._vault.environ()

    def close(self) -> None:
        """Give the memory back."""
        self._vault.close()
