"""How to reach an etcd cluster: its endpoints, TLS with or without a client certificate, and a user with a password.

Settings of the rendezvous win over environment variables, by which an agent also tells its workers.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.store.environ import ETCD_VARIABLE
from holdfast.wire.address import Endpoint, parse_endpoint

DEFAULT_PORT = 2379
CACERT_VARIABLE, CERT_VARIABLE, KEY_VARIABLE = "HOLDFAST_ETCD_CACERT", "HOLDFAST_ETCD_CERT", "HOLDFAST_ETCD_KEY"
USER_VARIABLE, PASSWORD_VARIABLE = "HOLDFAST_ETCD_USER", "HOLDFAST_ETCD_PASSWORD"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The members of a cluster, in the order in which they are tried, and what they want to see."""

    endpoints: tuple[Endpoint, ...]
    https: bool = False
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ",".join(map(str, self.endpoints))

    @classmethod
    def of(cls, params: RendezvousParameters, environ: Mapping[str, str] = os.environ) -> EtcdAccess:
        """Read the settings of a rendezvous, with TorchElastic's names, and the variables."""
        endpoints, https = parse_endpoints(params.endpoint)
        protocol = str(params.get("protocol", "https" if https else "")).lower()
        if protocol not in ("", "http", "https"):
            raise UsageError(f"the rendezvous setting 'protocol' is '{protocol}': write http or https")
        cacert = params.get("cacert") or environ.get(CACERT_VARIABLE)
        cert = params.get("cert") or environ.get(CERT_VARIABLE)
        key = params.get("key") or environ.get(KEY_VARIABLE)
        user = params.get("user") or environ.get(USER_VARIABLE)
        password = _password(params.get("password_file"), environ)
        if bool(user) != bool(password):
            missing = f"set ${PASSWORD_VARIABLE}, or password_file" if user else "give user as well"
            raise UsageError(f"etcd wants a user's name and password together: {missing}")
        https = protocol == "https" or (not protocol and bool(cacert or cert))
        if not https and (cacert or cert or key):
            raise UsageError("certificates for etcd need https: write https://host:port, or protocol=https")
        return cls(endpoints, https, cacert, cert, key, user, password)

    def as_environ(self) -> dict[str, str]:
        """Return the variables by which a worker finds the same cluster."""
        scheme = "https://" if self.https else ""
        named = {
            ETCD_VARIABLE: ",".join(f"{scheme}{endpoint}" for endpoint in self.endpoints),
            CACERT_VARIABLE: self.cacert and str(Path(self.cacert).absolute()),
            CERT_VARIABLE: self.cert and str(Path(self.cert).absolute()),
            KEY_VARIABLE: self.key and str(Path(self.key).absolute()),
            USER_VARIABLE: self.user,
            PASSWORD_VARIABLE: self.password,
        }
        return {name: value for name, value in named.items() if value}

    def context(self) -> ssl.SSLContext | None:
        """Make the TLS context; None for plain HTTP."""
        if not self.https:
            return None
        try:
            context = ssl.create_default_context(cafile=self.cacert)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(name for name in (self.cacert, self.cert, self.key) if name)
            raise UsageError(f"cannot use the certificates for etcd ({files}): {error}") from None
        return context


def parse_endpoints(text: str) -> tuple[tuple[Endpoint, ...], bool]:
    """Read `host:port,host:port`, each with or without http:// or https://; returns whether they want TLS."""
    found: list[Endpoint] = []
    schemes: set[str] = set()
    for part in text.split(","):
        scheme, separator, rest = part.strip().rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise UsageError(f"'{part.strip()}' is not the address of an etcd: write host:port or https://host:port")
        schemes.add(scheme)
        endpoint = parse_endpoint(rest.rstrip("/"), DEFAULT_PORT)
        found.append(Endpoint(endpoint.host, endpoint.port or DEFAULT_PORT))
    if len(schemes) > 1:
        raise UsageError(f"'{text}' mixes addresses with http and https: all members of an etcd speak the same")
    return tuple(found), schemes == {"https"}


def _password(path: str | None, environ: Mapping[str, str]) -> str | None:
    if not path:
        return environ.get(PASSWORD_VARIABLE)
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"cannot read the password for etcd from {path}: {error.strerror}") from None
