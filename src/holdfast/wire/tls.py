"""TLS for the coordinator's port: three files, two contexts."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.wire.address import Endpoint

CERT_VARIABLE, KEY_VARIABLE, CA_VARIABLE = "HOLDFAST_TLS_CERT", "HOLDFAST_TLS_KEY", "HOLDFAST_TLS_CA"

#: How long to wait for the answer to a TLS greeting.
PROBE_S = 2.0
#: What OpenSSL calls an answer that is no TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
#: What a plain client is told of a coordinator that speaks TLS.
SPEAKS_TLS = "it speaks TLS, and this node does not: give --tls-ca, as on the other nodes"


def tls_trouble(endpoint: Endpoint, error: OSError) -> str:
    """Say why TLS with the coordinator at an endpoint failed, and what to do."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = (
            f"{error.verify_message}; --tls-ca must name the authority of the coordinator's certificate, "
            f"and that must be one for {endpoint.host}"
        )
    elif reason in _NO_TLS:
        why = f"it does not speak TLS ({reason}): start the coordinator with --tls-cert and --tls-key, or all without"
    elif "ALERT" in reason:
        why = f"it refused this node ({reason}): give --tls-cert and --tls-key of the authority that it trusts"
    elif isinstance(error, ssl.SSLEOFError | ConnectionError):
        why = "it ended the connection in the TLS handshake; it may not speak TLS, or want --tls-cert and --tls-key"
    else:
        why = reason or str(error) or type(error).__name__
    return f"TLS with {endpoint} failed: {why}"


def speaks_tls(endpoint: Endpoint) -> bool:
    """Ask an endpoint that has said nothing whether it waits for TLS; blocks for `PROBE_S` at most."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the greeting
    try:
        with contextlib.closing(socket.create_connection((endpoint.host, endpoint.port), PROBE_S)) as sock:
            context.wrap_socket(sock, server_hostname=endpoint.host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it refused, in TLS
    except (OSError, ValueError):
        return False
    return True


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
