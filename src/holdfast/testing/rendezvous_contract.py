"""What every rendezvous handler must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", rendezvous_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_handler)

`make(min_nodes, max_nodes, join_timeout)` returns the handler of one more node of the same run, in this process;
`join_timeout` is in seconds. A node that joins later than the others is let in by the next round: leave these cases
out with `rendezvous_cases(elastic=False)` where the number of nodes is fixed. The caller shuts down what `make` made. A
case fails with an `AssertionError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast.errors import RendezvousClosedError, RendezvousTimeoutError
from holdfast.rendezvous.api import RendezvousHandler, RendezvousInfo, as_rendezvous_info
from holdfast.testing.cases import PATIENCE_S, Background, Cases, raises

Make = Callable[[int, int, float], RendezvousHandler]
Case = Callable[[Make], None]

POLL_S = 0.02
SHORT_S = 0.3
#: A node that waits for others in vain has met the run by then, on a busy machine too.
IN_VAIN_S = 2.0

_case: Cases[Case] = Cases()
_elastic_case: Cases[Case] = Cases()


def rendezvous_cases(*, elastic: bool = True) -> list[Case]:
    """Return every case, in a fixed order; those with late nodes only where a run is elastic."""
    return _case.all() + (_elastic_case.all() if elastic else [])


def _asking(handler: RendezvousHandler) -> Background:
    return Background(lambda: as_rendezvous_info(handler.next_rendezvous()))


def _meet(*handlers: RendezvousHandler) -> list[RendezvousInfo]:
    return [each.result() for each in [_asking(handler) for handler in handlers]]


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it never came about that {what}"
        threading.Event().wait(POLL_S)


@_case
def it_says_who_it_is(make: Make) -> None:
    """The backend's name and the run's id are text, the same for all nodes, and the run is open."""
    first, second = make(2, 2, PATIENCE_S), make(2, 2, PATIENCE_S)

    assert isinstance(first.get_backend(), str)
    assert first.get_backend() == second.get_backend() != ""
    assert first.get_run_id() == second.get_run_id() != ""
    assert isinstance(first.use_agent_store, bool)
    assert not first.is_closed()
    assert first.num_nodes_waiting() == 0


@_case
def a_node_alone_gets_a_round(make: Make) -> None:
    """Where one is enough, it is rank 0 of 1 and has a store."""
    (info,) = _meet(make(1, 1, PATIENCE_S))

    assert (info.rank, info.world_size) == (0, 1)
    info.store.set("key", b"value")
    assert info.store.get("key") == b"value"


@_case
def nodes_get_ranks_and_share_a_store(make: Make) -> None:
    """Every node has a rank of its own, all agree on the number of nodes, and what one sets another gets."""
    handlers = [make(3, 3, PATIENCE_S) for _ in range(3)]
    infos = _meet(*handlers)

    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}
    infos[1].store.set("key", b"value")
    assert infos[2].store.get("key") == b"value"
    assert [each.num_nodes_waiting() for each in handlers] == [0, 0, 0]
    assert len({_master(info) for info in infos}) == 1


def _master(info: RendezvousInfo) -> tuple[str, int] | None:
    found = info.bootstrap_store_info
    return None if found is None else (found.master_addr, found.master_port)


@_case
def rounds_follow_each_other(make: Make) -> None:
    """The same nodes meet again, and what the first round left in the store is not read by the second."""
    first, second = make(2, 2, PATIENCE_S), make(2, 2, PATIENCE_S)
    before = _meet(first, second)
    before[0].store.set("key", b"old")
    after = _meet(first, second)

    assert sorted(info.rank for info in after) == [0, 1]
    raises(Exception, after[0].store.wait, ["key"], timedelta(seconds=SHORT_S))
    after[0].store.set("key", b"new")
    assert after[1].store.get("key") == b"new"


@_case
def a_closed_run_lets_no_node_in(make: Make) -> None:
    """One node closes the run for all; it stays closed."""
    first, second = make(2, 2, PATIENCE_S), make(2, 2, PATIENCE_S)
    _meet(first, second)
    first.set_closed()

    for each in (first, second):
        _wait_until(each.is_closed, "a node learned that the run is closed")
        raises(RendezvousClosedError, each.next_rendezvous)
    first.set_closed()
    assert first.is_closed()


@_case
def a_node_that_waits_is_told_of_the_end(make: Make) -> None:
    """`next_rendezvous` does not go on waiting for nodes that will never come."""
    first, second = make(2, 2, PATIENCE_S), make(2, 2, PATIENCE_S)
    _meet(first, second)
    waiting = _asking(first)
    second.set_closed()

    raises(RendezvousClosedError, waiting.result)


@_case
def too_few_nodes_are_an_error_after_the_timeout(make: Make) -> None:
    """It says so instead of waiting for ever."""
    raises(RendezvousTimeoutError, make(2, 2, IN_VAIN_S).next_rendezvous)


@_case
def shutting_down_closes_the_run(make: Make) -> None:
    """It says that it worked, and may be done twice."""
    handler = make(1, 1, PATIENCE_S)
    _meet(handler)

    assert handler.shutdown() is True
    assert handler.is_closed()
    handler.shutdown()
    assert handler.is_closed()


@_elastic_case
def a_late_node_is_seen_and_let_in(make: Make) -> None:
    """An agent that polls sees it wait; the next round has both."""
    first = make(1, 2, PATIENCE_S)
    (before,) = _meet(first)
    second = make(1, 2, PATIENCE_S)
    waiting = _asking(second)
    _wait_until(lambda: first.num_nodes_waiting() > 0, "the late node was seen")
    (after,) = _meet(first)

    late = waiting.result()
    assert (before.world_size, after.world_size, late.world_size) == (1, 2, 2)
    assert {after.rank, late.rank} == {0, 1}
