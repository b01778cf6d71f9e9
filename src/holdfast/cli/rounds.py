"""`holdfast rounds`: look into a coordinator."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from holdfast.cli.names import complete_runs, endpoint_of, find_run
from holdfast.cli.options import connection_options, tls_files
from holdfast.coordinator.query import ask_coordinator
from holdfast.errors import HandshakeError, UnavailableError, UsageError, WrongSecretError
from holdfast.events.index import journals_of
from holdfast.printable import printable
from holdfast.quantities import count
from holdfast.wire.address import parse_endpoint
from holdfast.wire.secret import find_secret

DEFAULT = "localhost:29400"


@click.command()
@click.argument("endpoint", metavar="[ENDPOINT|RUN]", default=DEFAULT, shell_complete=complete_runs)
@click.option("--run-id", default="", help="Only this run.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--follow", "-f", is_flag=True, help="Ask again every second until Ctrl-C.")
@connection_options
def command(
    endpoint: str,
    run_id: str,
    as_json: bool,
    follow: bool,
    secret_file: str | None,
    insecure: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
) -> None:
    """Show the runs of a coordinator: nodes, rounds, restarts, and what each run waits for.

    ENDPOINT is the coordinator's host:port, localhost:29400 by default. RUN is a run or job of this host, named as for
    `holdfast events`; its coordinator is then asked for that run alone.

    \b
      holdfast rounds host-a:29400
      holdfast rounds train-x7k2m --follow
    """
    run = "" if _is_endpoint(endpoint) else find_run(endpoint)
    if run and (found := endpoint_of(run)):
        endpoint, run_id = found, run_id or run
    elif run and journals_of(run):
        raise UsageError(f"the journal of run '{run}' does not say where its coordinator is: name it as host:port")
    elif "://" in endpoint:
        raise UsageError(f"there is no run '{endpoint}' on this host; `holdfast events` shows the newest there is")
    where = parse_endpoint(endpoint)
    secret = find_secret(secret_file, insecure=insecure)
    tls = tls_files(tls_cert, tls_key, tls_ca)
    context = tls.client_context() if tls else None
    while True:
        try:
            runs = ask_coordinator(where, secret.key, run_id, context)
        except WrongSecretError:
            if run and secret.own:
                raise HandshakeError(
                    f"run '{run}' has a secret of its own, as every run on one node and every local job has: "
                    f"`holdfast events {run}` shows its rounds, or name its secret with --secret-file"
                ) from None
            raise HandshakeError(secret.wrong_at(where)) from None
        except UnavailableError as error:
            hint = f"is a coordinator running at {where}? `holdfast serve` starts one"
            if run and journals_of(run):
                hint = f"run '{run}' may have ended: `holdfast events {run}` shows what happened"
            raise UnavailableError(f"{error}; {hint}") from None
        click.echo(json.dumps(runs, indent=None if follow else 2) if as_json else printable(_render(runs, run_id)))
        if not follow:
            return
        time.sleep(1)


def _is_endpoint(text: str) -> bool:
    """Whether this can only be host:port, or a port alone."""
    return text.rpartition(":")[2].isdecimal()


def _render(runs: list[dict[str, Any]], run_id: str) -> str:
    if not runs:
        return f"no run '{run_id}' here" if run_id else "no runs"
    return "\n".join(line for run in runs for line in _lines(run))


def _lines(run: dict[str, Any]) -> list[str]:
    restarts = f"{run['restarts_used']} of {run['max_restarts']} restarts used" if run["max_restarts"] else ""
    lines = [f"{run['run']}: {run['sentence']}" + (f" ({restarts})" if restarts else "")]
    for node in sorted(run["nodes"], key=lambda node: (node["rank"] is None, node["rank"])):
        rank = "-" if node["rank"] is None else node["rank"]
        gone = "" if node["connected"] else ", connection lost"
        note = f"; {node['note']}" if node.get("note") else ""
        workers = count(node["workers"], "worker")
        lines.append(f"  {rank!s:>4}  {node['host']:<24} {workers}  {node['phase']}{gone}{note}")
    return lines
