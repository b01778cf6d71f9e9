"""`holdfast serve`: a coordinator in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click

from holdfast.cli.options import connection_options, tls_files
from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.records import RecordFolder
from holdfast.errors import InternalError, UsageError
from holdfast.facts import Fact, facts
from holdfast.home import state_folder
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.descriptors import raise_limit
from holdfast.wire.listener import Limits
from holdfast.wire.loop import new_loop
from holdfast.wire.secret import find_secret, open_door_warning
from holdfast.wire.tls import TlsFiles


@click.command()
@click.argument("endpoint", default="localhost:29400")
@connection_options
@click.option("--require-secret", is_flag=True, help="Refuse to serve without a secret (the default).")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Where the records of runs are kept, so that a restarted coordinator goes on where it was. "
    "Default: a folder of this user's state, one for each port.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    help="Connections at once.  [default: as many as ulimit -n leaves room for]",
)
@click.option("--quiet", is_flag=True, help="Say nothing but warnings.")
def command(
    endpoint: str,
    secret_file: str | None,
    insecure: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    require_secret: bool,
    state_dir: Path | None,
    max_connections: int | None,
    quiet: bool,
) -> None:
    """Run a coordinator at ENDPOINT (host:port; port 0 takes a free one; 0.0.0.0 serves every interface).

    Agents find it with --rdzv-endpoint. It serves any number of runs at once. If it dies, training continues; start it
    again on the same endpoint and the agents reconnect.

    \b
      holdfast serve                        this machine only
      holdfast serve 0.0.0.0:29400 --secret-file job.secret
    """
    where = parse_endpoint(endpoint)
    listen = Endpoint("", where.port) if where.host in ("0.0.0.0", "*") else where
    secret = find_secret(secret_file, insecure=insecure)
    if not secret.key and require_secret:
        raise UsageError("--require-secret and --insecure cannot be used together: leave one out")
    logging.basicConfig(format="%(message)s", level=logging.WARNING if quiet else logging.INFO, stream=sys.stderr)
    if not secret.key:
        facts.warn("open_door", open_door_warning(where))
    folder = state_dir or (state_folder() / "coordinators" / str(where.port) if where.port else None)
    stop = asyncio.Event()
    coordinator = Coordinator(
        secret.key,
        RecordFolder(folder) if folder is not None else None,
        Limits(connections_max=max_connections),
        on_crash=lambda _: stop.set(),
    )
    raise_limit()
    loop = new_loop()
    try:
        loop.run_until_complete(_serve(coordinator, listen, tls_files(tls_cert, tls_key, tls_ca), where, stop))
    finally:
        loop.close()


async def _serve(
    coordinator: Coordinator, listen: Endpoint, tls: TlsFiles | None, where: Endpoint, stop: asyncio.Event
) -> None:
    opened = await coordinator.open(listen, tls.server_context() if tls else None)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    click.echo(f"holdfast coordinator at {Endpoint(where.host, opened.port)}")
    await stop.wait()
    if coordinator.crash is not None:
        raise InternalError("the coordinator has stopped; start it again") from coordinator.crash
    facts.publish(Fact("coordinator_stopping", "stopping; agents go on and look for the next coordinator here"))
    await coordinator.close()
