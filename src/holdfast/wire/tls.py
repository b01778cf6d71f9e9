"""TLS for the coordinator's port: three files, two contexts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import UsageError

CERT_VARIABLE, KEY_VARIABLE, CA_VARIABLE = "HOLDFAST_TLS_CERT", "HOLDFAST_TLS_KEY", "HOLDFAST_TLS_CA"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this node's certificate and key, and the authority that every node's certificate must come from.

    A coordinator needs `cert` and `key`; given `ca` as well, it asks every client for a certificate too.
    A client needs `ca`; it shows its own `cert` where it has one.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> TlsFiles | None:
        """Read the three variables; None when none of them is set."""
        files = cls(environ.get(CERT_VARIABLE), environ.get(KEY_VARIABLE), environ.get(CA_VARIABLE))
        return files if (files.cert or files.key or files.ca) else None

    def as_environ(self) -> dict[str, str]:
        """Return the variables that `from_environ` reads."""
        named = {CERT_VARIABLE: self.cert, KEY_VARIABLE: self.key, CA_VARIABLE: self.ca}
        return {name: path for name, path in named.items() if path}

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a coordinator's listener."""
        if not (self.cert and self.key):
            raise UsageError("a coordinator with TLS needs both --tls-cert and --tls-key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a node that connects to a coordinator."""
        if not self.ca:
            raise UsageError("TLS needs --tls-ca, the authority that the coordinator's certificate comes from")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
            if self.ca:
                context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            given = ", ".join(filter(None, (self.cert, self.key, self.ca)))
            reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "not in PEM form"
            raise UsageError(f"cannot load the TLS files {given}: {reason}; name files in PEM form") from None
