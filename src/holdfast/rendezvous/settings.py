"""How the parameters of a rendezvous become settings of a run: our names, torchrun's names, their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator.messages import DROP_GRACE_S, LEASE_S, Admit, RunSettings
from holdfast.coordinator.quorum import MAJORITY, RULES
from holdfast.errors import UsageError
from holdfast.quantities import parse_duration
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.wire.tls import TlsFiles

JOIN_TIMEOUT_S = 600.0
#: A round that lasted this long counts as progress.
PROGRESS_S = 60.0
#: Whether another agent takes the coordinator over if the user does not say.
TAKEOVER = True
#: Every setting that has a meaning here, and those of torchrun that need none.
SETTINGS = frozenset(
    """
    admit cacert cert crash_loop drop_grace expected fixed_ranks insecure is_host join_timeout keep_alive_interval
    keep_alive_max_attempt key last_call_timeout lease local_world_size max_restarts node_rank password_file
    progress_after protocol quiet recovery_timeout rejoin_timeout require_secret reset_restarts role secret_file spares
    standalone timeout tls_ca tls_cert tls_key user takeover quorum guide guardian close_timeout heartbeat_timeout rank
    read_timeout store_type
    use_libuv
    """.split()  # noqa: SIM905 - one name a line would fill the page
)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node decides for itself."""

    lease_s: float
    join_timeout_s: float
    role: str
    local_world_size: int
    node_rank: int
    is_host: bool | None
    secret_file: str | None
    require_secret: bool
    insecure: bool
    #: Whether no other node or command needs to find this run.
    standalone: bool
    #: Where the workers meet if this node has rank 0; 0 for a free port in each round.
    master_port: int
    tls: TlsFiles | None


def run_settings(params: RendezvousParameters) -> RunSettings:
    """Read what all nodes of a run agree on."""
    admit, every_s = parse_admit(str(params.get("admit", Admit.AT_ONCE.value)))
    return RunSettings(
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        max_restarts=params.get_as_int("max_restarts", 0) or 0,
        last_call_s=_seconds(params, "last_call_timeout", 30.0),
        quiet_s=_seconds(params, "quiet", 3.0),
        admit=admit,
        admit_every_s=every_s,
        rejoin_timeout_s=_seconds(params, "rejoin_timeout", 600.0),
        recovery_s=_seconds(params, "recovery_timeout", 10.0),
        spares=_count(params, "spares"),
        progress_s=_seconds(params, "progress_after", PROGRESS_S),
        reset_restarts=bool(params.get_as_bool("reset_restarts", False)),
        crash_loop=params.get_as_int("crash_loop", 0) or 0,
        expected=params.get_as_int("expected", 0) or 0,
        drop_grace_s=_seconds(params, "drop_grace", DROP_GRACE_S),
        fixed_ranks=bool(params.get_as_bool("fixed_ranks", False)),
        takeover=_takeover(params),
        quorum=_quorum(params),
        guardian=str(params.get("guardian", "")),
    )


def node_settings(params: RendezvousParameters) -> NodeSettings:
    """Read what this node decides for itself."""
    # torchrun hands its rendezvous timeout over as `timeout`, which its own c10d backend then ignores.
    join_timeout_s = _seconds(params, "join_timeout", _seconds(params, "timeout", JOIN_TIMEOUT_S))
    return NodeSettings(
        lease_s=_lease(params),
        join_timeout_s=join_timeout_s,
        role=str(params.get("role", "default")),
        local_world_size=params.get_as_int("local_world_size", 1) or 1,
        node_rank=_count(params, "node_rank"),
        is_host=params.get_as_bool("is_host"),
        secret_file=params.get("secret_file"),
        require_secret=bool(params.get_as_bool("require_secret", False)),
        insecure=bool(params.get_as_bool("insecure", False)),
        standalone=bool(params.get_as_bool("standalone", params.max_nodes == 1)),
        master_port=params.get_as_int("master_port", 0) or 0,
        tls=_tls(params),
    )


def parse_admit(text: str) -> tuple[Admit, float]:
    """Read an admission policy: `at-once`, `restart`, or `every:10m`."""
    name, _, period = text.strip().lower().replace("_", "-").partition(":")
    if name in (Admit.AT_ONCE, Admit.RESTART) and not period:
        return Admit(name), 0.0
    if name == Admit.EVERY and period:
        return Admit.EVERY, parse_duration(period)
    raise UsageError(f"'{text}' is not an admission policy: write at-once, restart, or every:TIME as in every:10m")


def _takeover(params: RendezvousParameters) -> bool:
    """Read whether another agent may carry the coordinator; a single node has none, and `is_host` names the one."""
    return params.max_nodes > 1 and bool(params.get_as_bool("takeover", TAKEOVER)) and params.get("is_host") is None


def _quorum(params: RendezvousParameters) -> str:
    rule = str(params.get("quorum", MAJORITY))
    if rule not in RULES:
        raise UsageError(f"'{rule}' is not a rule for a quorum: write {' or '.join(RULES)}")
    return rule


def _tls(params: RendezvousParameters) -> TlsFiles | None:
    files = TlsFiles(params.get("tls_cert"), params.get("tls_key"), params.get("tls_ca"))
    return files if files != TlsFiles() else TlsFiles.from_environ()


def _count(params: RendezvousParameters, key: str) -> int:
    value = params.get_as_int(key)
    return -1 if value is None else value


def _lease(params: RendezvousParameters) -> float:
    interval = params.get_as_float("keep_alive_interval")
    attempts = params.get_as_float("keep_alive_max_attempt")
    if params.get("lease") is None and interval is not None:
        return interval * (attempts if attempts is not None else 3)
    return _seconds(params, "lease", LEASE_S)


def _seconds(params: RendezvousParameters, key: str, default: float) -> float:
    value = params.get(key)
    if value is None:
        return default
    try:
        return parse_duration(value)
    except UsageError as error:
        raise UsageError(f"the rendezvous setting '{key}': {error}") from None
