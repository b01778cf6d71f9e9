"""The vault that an agent hosts for its workers: their states and the neighbours', in this node's memory."""

from __future__ import annotations

from holdfast.agent.round_source import Coordinated
from holdfast.checkpoint.memory import run_folder
from holdfast.checkpoint.vault import Vault
from holdfast.errors import HoldfastError
from holdfast.facts import facts
from holdfast.wire.address import Endpoint, is_loopback

#: How long a start of workers may wait for a coordinator that does not answer.
ANNOUNCE_TIMEOUT_S = 5.0


class VaultHost:
    """The vault of one agent, from its first round to its end."""

    def __init__(self, rounds: Coordinated) -> None:
        self._rounds = rounds
        # Run ids may be used again: states that an older job left in memory are not ours.
        folder = run_folder(f"{rounds.get_run_id()}.{rounds.node}")
        self._vault = Vault(rounds.get_run_id(), secret=rounds.secret.key, folder=folder)

    def variables(self) -> dict[str, str]:
        """Open the vault, tell the other nodes where it is, and return the variables by which workers find it."""
        rounds, place = self._rounds, self._rounds.place
        if place is None:
            return {}
        try:
            if self._vault.endpoint is None:
                tls = rounds.tls.server_context() if rounds.tls is not None else None
                self._vault.open(Endpoint("127.0.0.1" if is_loopback(place.address) else "", 0), tls)
            with rounds.store(whole_run=True) as store:
                store.set_timeout(ANNOUNCE_TIMEOUT_S)
                self._vault.announce(store, place.address)
        except HoldfastError as error:
            facts.warn("vault_closed", f"states are not kept in memory: {error}")
            return {}
        return self._vault.environ()

    def close(self) -> None:
        """Release the memory."""
        self._vault.close()
