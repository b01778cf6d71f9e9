"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TlsFiles

F = TypeVar("F", bound=Callable[..., Any])


def connection_options(command: F) -> F:
    """Add the options for the secret and for TLS."""
    for option in reversed(
        [
            click.option(
                "--secret-file",
                type=click.Path(),
                help="File with the secret that all nodes share; readable by its owner alone.  "
                "[default: $HOLDFAST_SECRET_FILE, $HOLDFAST_SECRET, or this user's own]",
            ),
            click.option("--insecure", is_flag=True, help="Use no shared secret."),
            click.option("--tls-cert", type=click.Path(), envvar=CERT_VARIABLE, help="Certificate of this node (PEM)."),
            click.option("--tls-key", type=click.Path(), envvar=KEY_VARIABLE, help="Its private key (PEM)."),
            click.option(
                "--tls-ca",
                type=click.Path(),
                envvar=CA_VARIABLE,
                help="Authority that the other side's certificate must come from (PEM).",
            ),
        ]
    ):
        command = option(command)
    return command


def tls_files(cert: str | None, key: str | None, ca: str | None) -> TlsFiles | None:
    """Return the files if any was given."""
    return TlsFiles(cert, key, ca) if (cert or key or ca) else None
