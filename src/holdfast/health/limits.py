"""What the health server lets its clients make it hold and wait for. Pure."""

# Plain tuples here and in what the porter imports: dataclasses would double the time in which its process starts.

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Every limit of the health server; whoever goes beyond one loses its connection and nothing else."""

    #: Connections at a time; where one more comes, the one that has waited longest for its next request makes room.
    connections_max: int = 1000
    #: Bytes of a request's line and headers.
    head_bytes_max: int = 8192
    #: How long a client may take to send a request, and to read its answer.
    request_timeout_s: float = 5.0
    #: How long a connection may stay open between requests.
    idle_timeout_s: float = 30.0
    #: How long the agent may take to answer what only it knows.
    answer_timeout_s: float = 2.0
    #: Bytes of such an answer.
    answer_bytes_max: int = 16 * 1024 * 1024
