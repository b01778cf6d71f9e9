"""A rendezvous backend over a store that can compare and set: ours, or one of torch's."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Any

from holdfast.compat.elastic.dynamic import RendezvousBackend, Token
from holdfast.errors import RendezvousConnectionError, RendezvousStateError, UnavailableError, UsageError

__all__ = ["DEFAULT_PORT", "C10dRendezvousBackend"]

#: Where torchrun's store listens.
DEFAULT_PORT = 29400
#: Stands for no state: a store blocks a reader of a key that is not there.
_NOTHING = "Y2FuaW1hZGFt"


class C10dRendezvousBackend(RendezvousBackend):
    """Keeps the state under one key of a store; the token is what the key holds."""

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise UsageError("The run id must be a non-empty string.")
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"
        self._ask("compare_set", self._key, "", _NOTHING)

    @property
    def name(self) -> str:
        """The backend's name."""
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none yet."""
        return _decode(self._ask("get", self._key))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Set the state if it still has this token."""
        if token is not None and not isinstance(token, bytes):  # it cannot have come from us
            found = self.get_state()
            return None if found is None else (*found, False)
        desired = b64encode(state).decode()
        expected = _NOTHING if token is None else token.decode()
        found = _decode(self._ask("compare_set", self._key, expected, desired))
        # What the key held before was another text: if it holds ours now, it was set by us or by a node that
        # wanted exactly the same.
        return None if found is None else (*found, found[0] == state)

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._store, method)(*args)
        except (ValueError, RuntimeError, OSError, UnavailableError) as error:
            raise RendezvousConnectionError(f"The connection to the C10d store has failed: {error}") from error


def _decode(data: bytes) -> tuple[bytes, Token] | None:
    if data == _NOTHING.encode():
        return None
    try:
        return b64decode(data, validate=True), data
    except binascii.Error as error:
        raise RendezvousStateError(f"The state object is corrupt: {error}") from error
