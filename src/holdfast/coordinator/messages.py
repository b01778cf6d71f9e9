"""The messages between agents and the coordinator about rounds. Pure.

Every message may be lost, repeated or delayed without harm: a node's `seq` tells old messages from new ones, its `ask`
counter says which ask a round answers, and every beat repeats what the node believes, so that the side that
is behind is told again.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from holdfast.store.messages import SERVICE, STORE_REPLIES, STORE_REQUESTS
from holdfast.wire.frames import Codec, Message
from holdfast.wire.handshake import HANDSHAKE_TYPES

#: What a run's id may look like; it becomes part of store keys and file names.
RUN_CHARS_MAX = 256
#: How long a node whose connection broke has to come back before it counts as dead.
DROP_GRACE_S = 0.05
#: How long a node may be silent before it counts as lost.
LEASE_S = 5.0
#: For this share of the time that nodes have to come back, sure deaths count for a coordinator that took over.
SURE_SHARE = 0.5


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The base of data inside messages; new fields go to the end with a default."""


class Admit(enum.StrEnum):
    """When a late node may break a running round to get in."""

    AT_ONCE = "at-once"
    RESTART = "restart"
    EVERY = "every"


class RunSettings(Record, frozen=True):
    """What all nodes of a run agree on; the first node to join brings it."""

    min_nodes: int
    max_nodes: int
    max_restarts: int = 0
    #: The longest that a first gathering waits between min and max nodes ...
    last_call_s: float = 30.0
    #: ... which ends early when no node has arrived for this long.
    quiet_s: float = 3.0
    admit: Admit = Admit.AT_ONCE
    #: With `Admit.EVERY`: a round lasts at least this long before a newcomer may break it.
    admit_every_s: float = 0.0
    #: How long a live node may take from the breaking of a round to its rejoin before it is counted out.
    rejoin_timeout_s: float = 600.0
    #: How long a restarted coordinator waits for the members of the round it finds running.
    recovery_s: float = 10.0
    #: Whether the node ranks that users gave are binding: each must be given, and given once.
    fixed_ranks: bool = False
    #: How many nodes may stand by beyond `max_nodes`; -1 for any number.
    spares: int = -1
    #: A round that lasted this long has made progress; 0 means that none ever has.
    progress_s: float = 0.0
    #: Whether progress gives the used restarts back.
    reset_restarts: bool = False
    #: So many failures in a row without progress end the run; 0 for never.
    crash_loop: int = 0
    #: How long a node whose connection broke may take to come back on another before it counts as lost.
    drop_grace_s: float = DROP_GRACE_S
    #: A first gathering need not wait for more than so many, though `max_nodes` may come; 0 for `max_nodes`.
    expected: int = 0
    #: Whether another agent may carry the coordinator when the one that does is gone: each seal needs a quorum then.
    takeover: bool = False
    #: Which survivors go on without the rest; see `quorum`.
    quorum: str = "majority"
    #: The run of the agents whose quorum this run's seals need; empty if it has none.
    guardian: str = ""


class NodeSpec(Record, frozen=True):
    """One node: its workers, its name and its addresses."""

    node: str
    host: str
    role: str
    local_world_size: int
    #: A port that the node holds free for the first worker of the round, should it become rank 0.
    port: int
    #: Overrides the address by which the node reaches the coordinator.
    address: str = ""
    #: The rank that the user asked for, or -1.
    node_rank: int = -1
    lease_s: float = LEASE_S
    hosts_coordinator: bool = False
    #: Where the node before this one in the round may connect to it; 0 if it does not listen.
    peer_port: int = 0
    #: Where this node's agent would carry the coordinator, as HOST:PORT; without a host, at the node's own address.
    standby: str = ""


class RoundId(Record, frozen=True):
    """A round's number, and a nonce that no other round has, not even one with the same number elsewhere."""

    number: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.number}.{self.nonce}"


class Place(Record, frozen=True):
    """One node's place in a round: all it needs to number its workers and find the first one."""

    round: RoundId
    #: This node's rank among the nodes, and how many nodes there are.
    group_rank: int
    group_world_size: int
    #: The global rank of this node's first worker, and how many workers there are.
    first_rank: int
    world_size: int
    #: The same within this node's role.
    first_role_rank: int
    role_world_size: int
    #: Where the round's rank 0 lives: its node's address and the port held there.
    master_addr: str
    master_port: int
    restarts_used: int = 0
    #: This node's own address, as the others may use it.
    address: str = ""
    #: The group rank of the agent that carries the coordinator inside it, or -1: should the coordinator die, that
    #: agent died with it, and is not waited for.
    coordinator_rank: int = -1
    #: Where the next node in the order of ranks listens, the first after the last.
    peer_addr: str = ""
    peer_port: int = 0


class Term(Record, frozen=True):
    """The time of one coordinator: a number that grows, and which coordinator has it; 0 before any was promised."""

    number: int = 0
    leader: str = ""


class Ballot(Record, frozen=True):
    """One round whose members decide whether the next one is sealed."""

    round: RoundId
    term: int
    size: int
    #: The member that carried the coordinator: of two equal halves, the one with this node goes on.
    tie: str = ""
    #: All members by name, unless they are many.
    names: tuple[str, ...] = ()
    #: Whether the node that says this is a member.
    mine: bool = False
    #: Whether all its members are known to have accepted it: then no earlier round counts any more.
    firm: bool = False
    #: From which launches it descends, each by the nonce of its first round; rounds of one launch are a chain.
    launches: tuple[str, ...] = ()
    #: How many more nodes there were, when it was sealed or before: they stood by, or left and may come back.
    spares: int = 0
    #: Whether its members have made a step together, or no steps are counted: then no earlier round has a later state.
    stepped: bool = False


class Heir(Record, frozen=True):
    """One agent that can carry the coordinator, and where."""

    node: str
    address: str


class Succession(Record, frozen=True):
    """Everything a member needs to find the next coordinator and to tell it what counts."""

    term: Term
    ballots: tuple[Ballot, ...] = ()
    #: In the order in which they take over.
    heirs: tuple[Heir, ...] = ()
    #: Members of earlier rounds that count which are surely gone.
    gone: tuple[str, ...] = ()
    #: Where the other members of earlier rounds that count were: their fate may have to be found out.
    former: tuple[Heir, ...] = ()


class Pledge(Record, frozen=True):
    """What a node brings to a coordinator besides its place: what it has promised, and what its vote counts for."""

    term: Term = Term()
    ballots: tuple[Ballot, ...] = ()
    #: Whether the node was in touch with its last coordinator until that one's process ended.
    sure: bool = False
    #: Nodes that have left, in the words of the last coordinator.
    gone: tuple[str, ...] = ()
    #: Restarts used, and failures in a row without progress, as last told.
    spent: tuple[int, int] = (0, 0)
    #: Earlier processes in this node's place, which are surely gone; the pledge says all that they knew.
    replaces: tuple[str, ...] = ()
    #: Only where it replaces others: where the agents were that could carry the coordinator.
    heirs: tuple[Heir, ...] = ()
    #: Whether the workers of this node have ever counted a step.
    counts_steps: bool = False


class Memory(Record, frozen=True):
    """What a node keeps on disk for the process that is started in its place: what it knew, and has promised."""

    #: The processes that this is the memory of: the last one, and those whose place it took.
    nodes: tuple[str, ...]
    term: Term
    ballots: tuple[Ballot, ...] = ()
    heirs: tuple[Heir, ...] = ()


class Claim(Record, frozen=True, order=True):
    """How good the claim of one coordinator to a run is; the greater one is followed."""

    term: int
    #: Whether it has a quorum at present.
    settled: bool
    #: How many members of the last round follow it.
    nodes: int
    #: The name of the coordinator: of two equal claims, one must be the greater.
    leader: str


class Phase(enum.IntEnum):
    """What a node says it is doing."""

    WAITING = 0  # no workers; it wants a round
    RUNNING = 1  # workers of a round are, or may be, running
    STOPPING = 2  # the round is over for this node; its workers are being stopped
    DONE = 3  # its workers have all finished well


class Cause(Record, frozen=True):
    """Why a node gave up a round: a sentence, whether it is only a victim of another failure, and details as data."""

    sentence: str
    victim: bool = False
    detail: dict[str, Any] = {}
    #: Whether no restart can mend it: the run ends, whatever is left of its budget.
    ends_job: bool = False


class ToldFact(Record, frozen=True):
    """One fact of the run's history; `time` is the coordinator's wall clock."""

    number: int
    time: float
    kind: str
    sentence: str
    level: int
    data: dict[str, Any] = {}


# -- from a node ---------------------------------------------------------------------------------------------


class Join(Message, frozen=True, tag=10):
    """Everything that the coordinator needs to know of a node: sent to ask for a round, and on every new connection."""

    seq: int
    run: str
    spec: NodeSpec
    settings: RunSettings
    phase: Phase
    #: Counts this node's asks for a round.
    ask: int
    #: The round that the node is in, or has just given up.
    place: Place | None = None
    cause: Cause | None = None
    #: The last fact of the run's history that the node knows, with all before it.
    known: int = 0
    #: Only where the coordinator can move.
    pledge: Pledge | None = None


class Beat(Message, frozen=True, tag=11):
    """Proof of life, and what the node believes."""

    seq: int
    phase: Phase
    ask: int
    round: RoundId | None
    known: int = 0
    #: A text about this node, for `holdfast rounds`.
    note: str = ""
    #: How many steps this node's workers have made, as far as it knows: a number that grows while they work.
    steps: int = 0


class Fail(Message, frozen=True, tag=12):
    """This node cannot continue the round because of a failure; all nodes are told at once."""

    seq: int
    round: RoundId
    cause: Cause


class Finish(Message, frozen=True, tag=13):
    """All workers of this node have finished well."""

    seq: int
    round: RoundId


class Leave(Message, frozen=True, tag=14):
    """This node leaves the run on purpose."""

    seq: int
    reason: str


class Close(Message, frozen=True, tag=15):
    """The run is over for all nodes; `failed` if its work cannot be done any more."""

    seq: int
    reason: str
    failed: bool = False


class Call(Message, frozen=True, tag=17):
    """Asks every other node of the round something; the coordinator only passes it on."""

    #: Chosen by the caller to know the answers by.
    call: int
    topic: str
    body: str


class Reply(Message, frozen=True, tag=18):
    """One node's answer to a `Called`."""

    caller: str
    call: int
    body: str


class Replace(Message, frozen=True, tag=19):
    """A worker of this node failed and is being replaced; the other workers of the round keep running."""

    seq: int
    round: RoundId
    cause: Cause


class Query(Message, frozen=True, tag=16):
    """Asks for the state of one run, or of all with the empty id; needs no join."""

    run: str = ""


class Promise(Message, frozen=True, tag=30):
    """The answer to an `Elect`: the highest term that this node follows, be it the asked one or another."""

    seq: int
    poll: int
    term: Term


# -- from the coordinator ------------------------------------------------------------------------------------


class Sealed(Message, frozen=True, tag=20):
    """A round was agreed; this is your place in it. Answers the ask with this number."""

    ask: int
    place: Place
    #: The latest facts of the run's history.
    facts: tuple[ToldFact, ...] = ()
    #: Only where the coordinator can move.
    succession: Succession | None = None


class Broken(Message, frozen=True, tag=21):
    """The round is over: stop its workers, then join again."""

    round: RoundId
    reason: str
    facts: tuple[ToldFact, ...] = ()


class Ack(Message, frozen=True, tag=22):
    """The answer to a beat. The sentence describes the state of the run."""

    sentence: str
    nodes_waiting: int
    #: What the node has missed of the run's history.
    facts: tuple[ToldFact, ...] = ()
    #: The `seq` of the beat, and whether the node's round is firm; only where the coordinator can move.
    seq: int = 0
    firm: bool = False
    #: Restarts used, and failures in a row without progress.
    spent: tuple[int, int] = (0, 0)
    #: Whether the members of the node's round have made a step in it; only where the coordinator can move.
    stepped: bool = False
    #: For a node that waits while others have a round: the agents that may carry the coordinator next.
    heirs: tuple[Heir, ...] = ()
    #: How many nodes stand by.
    spares: int = 0


class Resend(Message, frozen=True, tag=23):
    """The coordinator does not know the node's round: send a `Join`."""

    #: The ask with this number was answered by a round that is over, whether or not the node has heard of it: ask anew.
    void: int = -1


class Newcomers(Message, frozen=True, tag=24):
    """The number of nodes that wait to be admitted."""

    nodes_waiting: int


class Closed(Message, frozen=True, tag=25):
    """The run is over and its id cannot be used again. `cause` is the root cause if it failed."""

    reason: str
    failed: bool
    cause: Cause | None = None
    #: Whether it failed too often without progress: starting it again would not help.
    crash_loop: bool = False
    facts: tuple[ToldFact, ...] = ()


class Rejected(Message, frozen=True, tag=26):
    """This node cannot take part, for this reason."""

    reason: str


class Report(Message, frozen=True, tag=27):
    """The answer to a query: plain data for people and programs."""

    runs: list[dict[str, Any]]


class Called(Message, frozen=True, tag=28):
    """Another node of the round asks something; answered by a `Reply`."""

    caller: str
    call: int
    topic: str
    body: str


class Replied(Message, frozen=True, tag=29):
    """The answer of one node, by its rank in the round, to a `Call`."""

    call: int
    group_rank: int
    body: str


class Elect(Message, frozen=True, tag=32):
    """Asks a node to follow this term and nothing older; answered by a `Promise`."""

    poll: int
    term: Term


class Out(Message, frozen=True, tag=33):
    """This is not, or not any more, the coordinator of the run: look for it at `address` first."""

    address: str
    reason: str
    #: Nodes that have left, so that the next coordinator need not wait for them.
    gone: tuple[str, ...] = ()


# -- between agents that may carry the coordinator -----------------------------------------------------------


class Seek(Message, frozen=True, tag=31):
    """One that carries a run's coordinator asks another agent whether that one does, too; answered by a `Seen`."""

    run: str
    address: str
    claim: Claim


class Seen(Message, frozen=True, tag=34):
    """The answer to a `Seek`; without a claim, that agent carries no coordinator of the run."""

    run: str
    claim: Claim | None = None
    #: Where that agent's coordinator is instead.
    follows: str = ""


NODE_TYPES = (Join, Beat, Fail, Finish, Leave, Close, Call, Reply, Replace, Query, Promise, Seek)
COORDINATOR_TYPES = (
    Sealed,
    Broken,
    Ack,
    Resend,
    Newcomers,
    Closed,
    Rejected,
    Report,
    Called,
    Replied,
    Elect,
    Out,
    Seen,
)
#: All messages on a coordinator's port: handshake, rounds and store.
CODEC: Codec[Message] = Codec(
    *HANDSHAKE_TYPES, *NODE_TYPES, *COORDINATOR_TYPES, *STORE_REQUESTS, *STORE_REPLIES, service=SERVICE
)
