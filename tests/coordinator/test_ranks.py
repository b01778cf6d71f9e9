"""Who gets which rank."""

from random import Random

import pytest

from holdfast.coordinator.messages import NodeSpec, RoundId
from holdfast.coordinator.ranks import Candidate, Seat, arrange, choose, natural_key, places, trim


def candidate(name: str, host: str = "", order: int = 0, **spec: object) -> Candidate:
    fields = {"role": "trainer", "local_world_size": 1, "port": 1000, **spec}
    return Candidate(NodeSpec(node=name, host=host or f"host-{name}", **fields), order, f"at-{host or name}")


def names(line: list[Candidate | Seat]) -> list[str]:
    return [entry.spec.node for entry in line if isinstance(entry, Candidate)]


def seats(*nodes: str) -> list[Seat]:
    return [Seat(node, f"host-{node}") for node in nodes]


def test_a_first_round_counts_hosts_the_way_people_do() -> None:
    line = arrange([], [candidate("a", "node66"), candidate("b", "node7"), candidate("c", "node10")])

    assert names(line) == ["b", "c", "a"]


def test_the_coordinators_host_comes_first() -> None:
    line = arrange([], [candidate("a", "h1"), candidate("b", "h2", hosts_coordinator=True), candidate("c", "h2")])

    assert names(line) == ["b", "c", "a"]


def test_a_first_round_honours_the_ranks_that_users_asked_for() -> None:
    line = arrange([], [candidate("a", order=1), candidate("b", order=2, node_rank=0), candidate("c", node_rank=2)])

    assert names(line) == ["b", "a", "c"]


def test_of_two_that_ask_for_one_rank_the_first_to_arrive_gets_it() -> None:
    line = arrange([], [candidate("a", order=2, node_rank=0), candidate("b", order=1, node_rank=0)])

    assert names(line) == ["b", "a"]


def test_a_rank_that_does_not_exist_is_no_obstacle() -> None:
    assert names(arrange([], [candidate("a", node_rank=7), candidate("b", node_rank=1)])) == ["a", "b"]


def test_survivors_keep_their_order_when_a_node_is_lost() -> None:
    line = arrange(seats("c", "b", "a"), [candidate("a"), candidate("c")])

    assert names(line) == ["c", "a"]
    assert line[1] == Seat("b", "host-b")


def test_a_newcomer_takes_the_place_of_a_lost_node() -> None:
    line = arrange(seats("a", "b", "c"), [candidate("c"), candidate("d"), candidate("a")])

    assert names(line) == ["a", "d", "c"]


def test_of_newcomers_the_one_of_the_lost_nodes_host_takes_its_place() -> None:
    line = arrange(seats("a", "b", "c"), [candidate("a"), candidate("c"), candidate("d"), candidate("e", "host-b")])

    assert names(line) == ["a", "e", "c", "d"]


def test_a_newcomer_stands_beside_its_host() -> None:
    line = arrange(seats("a", "b", "c"), [candidate("a"), candidate("b"), candidate("c"), candidate("d", "host-a")])

    assert names(line) == ["a", "d", "b", "c"]


def test_a_node_of_another_host_does_not_part_the_nodes_of_one_host() -> None:
    previous = [Seat("a", "h1"), Seat("b", "h1"), Seat("c", "h1")]

    line = arrange(previous, [candidate("a", "h1"), candidate("c", "h1"), candidate("d", "h2")])

    assert names(line) == ["a", "c", "d"]


def test_a_lost_place_is_forgotten_when_its_host_has_moved_away_from_it() -> None:
    line = [candidate("a", "h1"), candidate("b", "h2"), Seat("c", "h1"), candidate("d", "h3"), Seat("e", "h4")]

    assert [seat.node for seat in trim(line, max_nodes=9)] == ["a", "b", "d", "e"]
    assert [seat.node for seat in trim(line, max_nodes=3)] == ["a", "b", "d"]


def test_when_no_node_is_left_the_order_is_that_of_a_first_round() -> None:
    line = arrange(seats("z", "y"), [candidate("b"), candidate("a")])

    assert names(line) == ["a", "b"]


def test_survivors_are_chosen_before_newcomers_and_newcomers_by_arrival() -> None:
    crowd = [candidate("d", order=4), candidate("c", order=3), candidate("b", order=2), candidate("a", order=5)]

    chosen = choose(seats("a"), crowd, max_nodes=2)

    assert [each.spec.node for each in chosen] == ["a", "b"]


def test_every_worker_is_numbered_over_all_and_within_its_role() -> None:
    order = [
        candidate("a", local_world_size=2),
        candidate("b", role="reader"),
        candidate("c", local_world_size=3, hosts_coordinator=True),
    ]

    made = places(order, RoundId(4, "x"), restarts_used=1)

    assert [place.first_rank for place in made] == [0, 2, 3]
    assert [place.first_role_rank for place in made] == [0, 0, 2]
    assert [place.role_world_size for place in made] == [5, 1, 5]
    assert {(place.world_size, place.group_world_size) for place in made} == {(6, 3)}
    assert {(place.master_addr, place.master_port) for place in made} == {("at-a", 1000)}
    assert {place.coordinator_rank for place in made} == {2}


def test_numbers_in_names_are_compared_by_value() -> None:
    assert sorted(["n10", "n9", "n", "m2"], key=natural_key) == ["m2", "n", "n9", "n10"]


@pytest.mark.parametrize("seed", range(20))
def test_order_is_kept_and_hosts_stay_together_when_nodes_come_and_go(seed: int) -> None:
    rng = Random(seed)
    most, hosts = rng.randint(2, 8), rng.randint(1, 4)
    alive: dict[str, Candidate] = {}
    gone: dict[str, Candidate] = {}
    line: list[Seat] = []
    last: list[str] = []
    born = 0
    for _ in range(100):
        gone |= {name: each for name, each in alive.items() if rng.random() < 0.3}
        alive = {name: each for name, each in alive.items() if name not in gone}
        alive |= {name: gone.pop(name) for name in list(gone) if rng.random() < 0.1}
        for _ in range(rng.randint(1, 4)):
            born += 1
            alive[f"n{born}"] = candidate(f"n{born}", f"h{rng.randrange(hosts)}", born)

        chosen = choose(line, list(alive.values()), most)
        arranged = arrange(line, chosen)

        order = [entry for entry in arranged if isinstance(entry, Candidate)]
        assert len(order) == len(chosen) == min(most, len(alive))
        before = [name for name in last if name in names(arranged)]
        assert [name for name in names(arranged) if name in before] == before
        blocks = [
            each.spec.host for at, each in enumerate(order) if at == 0 or order[at - 1].spec.host != each.spec.host
        ]
        assert len(blocks) == len(set(blocks)), arranged
        line, last = trim(arranged, most), names(arranged)
        assert len(line) <= max(most, len(order))
