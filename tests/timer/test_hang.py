"""Hangs under virtual time: what is learned, who is judged, who is blamed."""

from __future__ import annotations

import pytest

from holdfast.timer.hang import (
    LOOK_S,
    AskOthers,
    Beat,
    BeatsSeen,
    GangStarted,
    GangStuck,
    HangMachine,
    HangOptions,
    NoBeatsYet,
    OthersSeen,
)

FIXED = HangOptions(limit_s=60.0)
LEARNED = HangOptions(floor_s=30.0, multiple=10.0, warm_up_beats=3, warm_up_s=600.0)


class Gang:
    """Looks at the same beats whenever the machine asks for it, until something is found or time is up."""

    def __init__(self, options: HangOptions) -> None:
        self.machine = HangMachine(options)
        self.now = 1000.0
        self.beats: dict[int, Beat] = {}
        #: When workers here and on other nodes last moved; None: they move all the time, or it cannot be seen.
        self.still_since: float | None = None
        self.others_still_s: float | None = float("inf")
        self.can_see = True
        self.asked: list[float] = []
        self.told: list[NoBeatsYet] = []
        self.machine.handle(GangStarted(), self.now)

    def restart(self) -> None:
        self.machine.handle(GangStarted(), self.now)

    def run(self, seconds: float) -> GangStuck | None:
        until = self.now + seconds
        while (wakeup := self.machine.wakeup()) is not None and wakeup <= until:
            self.now = max(self.now, wakeup)
            still_s = 0.0 if self.still_since is None else self.now - self.still_since
            effects = self.machine.handle(BeatsSeen(self.beats, still_s if self.can_see else None), self.now)
            if AskOthers() in effects:
                self.asked.append(self.now)
                effects += self.machine.handle(OthersSeen(self.others_still_s), self.now)
            self.machine.check()
            self.told += [effect for effect in effects if isinstance(effect, NoBeatsYet)]
            for effect in effects:
                if isinstance(effect, GangStuck):
                    return effect
        self.now = until
        return None


def test_no_worker_is_judged_before_the_first_beat() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(), 1: Beat()}

    assert gang.run(100_000) is None


def test_one_silent_worker_makes_the_gang_stuck_at_the_limit() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(5, 1000.0), 1: Beat(5, 1010.0)}

    assert gang.run(59.9) is None
    assert gang.run(1000) == GangStuck((0, 1), 60.0, 60.0)
    assert gang.now == 1060.0


def test_a_gang_is_reported_once_and_the_next_one_anew() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(5, 1000.0)}

    assert gang.run(1000) is not None
    assert gang.machine.wakeup() is None
    gang.restart()
    gang.beats = {0: Beat(1, gang.now)}
    assert gang.run(1000) is not None


def test_who_has_come_least_far_is_named_first() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(9, 1003.0), 1: Beat(8, 1005.0), 2: Beat(), 3: Beat(9, 1001.0), 4: Beat(3, None)}

    stuck = gang.run(1000)

    assert stuck is not None
    assert stuck.suspects == (2, 1, 3, 0, 4)  # 4 has said that it pauses


def test_a_worker_that_was_started_after_the_silence_began_is_not_blamed_for_it() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(9, 1003.0), 1: Beat(), 2: Beat(9, 1002.0), 3: Beat(0, began=1040.0)}

    stuck = gang.run(1000)

    assert stuck is not None
    assert (stuck.suspects, stuck.newcomers) == ((1, 2, 0, 3), {3})


def test_a_newcomer_that_does_not_come_to_its_first_beat_is_blamed_in_the_end() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(9, 1000.0), 1: Beat(0, began=1001.0)}
    gang.now += gang.machine.options.warm_up_s + 10
    gang.machine.handle(GangStarted(), gang.now)  # a third worker was replaced meanwhile

    stuck = gang.run(1000)

    assert stuck is not None
    assert (stuck.suspects, stuck.newcomers) == ((1, 0), set())


def test_a_pause_is_no_hang() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(100, None)}

    assert gang.run(100_000) is None


def test_the_first_beats_have_a_limit_of_their_own() -> None:
    gang = Gang(LEARNED)
    gang.beats = {0: Beat(2, 1000.0)}

    assert gang.run(599) is None
    assert gang.run(10) is not None


@pytest.mark.parametrize(("longest", "limit"), [(0.1, 30.0), (3.0, 30.0), (12.0, 120.0)])
def test_the_limit_is_a_multiple_of_the_longest_step_and_never_less_than_the_floor(
    longest: float, limit: float
) -> None:
    gang = Gang(LEARNED)
    gang.beats = {0: Beat(50, 1000.0), 1: Beat(50, 1000.0, longest)}

    stuck = gang.run(1000)

    assert stuck is not None
    assert (stuck.limit_s, gang.now) == (limit, 1000.0 + limit)


def test_each_report_doubles_the_learned_limit_so_that_a_slow_evaluation_passes_in_the_end() -> None:
    gang = Gang(LEARNED)
    limits = []
    for _ in range(3):
        gang.beats = {0: Beat(50, gang.now, 1.0)}
        stuck = gang.run(10_000)
        assert stuck is not None
        limits.append(stuck.limit_s)
        gang.restart()

    assert limits == [30.0, 60.0, 120.0]


def test_a_pause_of_our_own_is_not_counted() -> None:
    gang = Gang(FIXED)
    gang.beats = {0: Beat(5, 1000.0)}
    gang.run(10)
    frozen_s = 5000.0

    assert gang.machine.handle(BeatsSeen(gang.beats), gang.now + LOOK_S + frozen_s) == []
    gang.now += LOOK_S + frozen_s
    assert gang.run(59) is None
    assert gang.run(2) is not None


def test_a_short_limit_is_looked_at_often_enough() -> None:
    gang = Gang(HangOptions(limit_s=0.2))
    gang.beats = {0: Beat()}

    wakeup = gang.machine.wakeup()

    assert wakeup is not None
    assert wakeup - gang.now <= 0.1


def test_a_gang_that_never_begins_to_beat_is_judged_where_a_start_has_a_limit() -> None:
    gang = Gang(HangOptions(start_s=120.0))
    gang.beats = {0: Beat(), 1: Beat()}

    assert gang.run(119) is None
    assert gang.run(1000) == GangStuck((0, 1), 120.0, 120.0)


def test_a_rank_that_has_beaten_in_a_gang_before_is_expected_to_beat_again() -> None:
    gang = Gang(LEARNED)
    gang.beats = {0: Beat(1, 1000.0)}
    assert gang.run(100) is None

    gang.restart()
    gang.beats = {0: Beat(), 1: Beat()}

    assert gang.run(599) is None
    assert gang.run(10) == GangStuck((0, 1), 600.0, 600.0)


def test_a_slow_start_raises_the_limit_of_the_next() -> None:
    gang = Gang(LEARNED)
    gang.beats = {0: Beat()}
    assert gang.run(200) is None
    gang.beats = {0: Beat(1, gang.now)}
    assert gang.run(10) is None

    gang.restart()
    gang.beats = {0: Beat()}

    assert gang.run(1990) is None
    assert gang.run(100) is not None


def test_ranks_that_never_beat_are_not_judged_by_what_another_did() -> None:
    gang = Gang(LEARNED)
    gang.beats = {0: Beat(1, 1000.0), 1: Beat()}  # as where only rank 0 beats
    assert gang.run(100) is None

    gang.restart()
    gang.beats = {1: Beat()}  # rank 0 lives on another node now

    assert gang.run(100_000) is None


def test_a_gang_of_which_one_beats_has_begun() -> None:
    gang = Gang(HangOptions(limit_s=1_000_000.0, start_s=60.0))
    gang.beats = {0: Beat(1, 1000.0), 1: Beat()}

    assert gang.run(100_000) is None


# -- workers that never beat -----------------------------------------------------------------------------------------


def still_gang(options: HangOptions = FIXED) -> Gang:
    gang = Gang(options)
    gang.beats = {0: Beat(), 1: Beat()}
    gang.still_since = gang.now
    return gang


def test_a_gang_that_never_beats_is_stuck_once_nothing_has_moved_for_the_limit() -> None:
    gang = still_gang()

    stuck = gang.run(1000)

    assert stuck is not None
    assert stuck.is_still
    assert (stuck.limit_s, set(stuck.suspects)) == (60.0, {0, 1})
    assert stuck.silent_s >= 60.0


def test_a_gang_that_never_beats_and_moves_is_not_judged() -> None:
    gang = still_gang()
    gang.still_since = None

    assert gang.run(100_000) is None
    assert gang.asked == []


def test_a_learned_limit_gives_a_still_gang_its_own_time() -> None:
    gang = still_gang(HangOptions(floor_s=30.0, still_s=600.0))

    assert gang.run(590) is None
    assert gang.run(20) is not None


def test_nothing_is_stuck_while_a_worker_of_another_node_moves_and_it_is_asked_rarely() -> None:
    gang = still_gang()
    gang.others_still_s = 3.0

    assert gang.run(600) is None
    assert 2 <= len(gang.asked) <= 10
    assert all(later - earlier >= 60.0 for earlier, later in zip(gang.asked, gang.asked[1:], strict=False))

    gang.others_still_s = 300.0
    assert gang.run(100) is not None


def test_nothing_is_stuck_where_another_node_does_not_say_whether_its_workers_move() -> None:
    gang = still_gang()
    gang.others_still_s = None

    assert gang.run(100_000) is None


def test_a_gang_that_beats_is_judged_by_its_beats_alone() -> None:
    gang = still_gang()
    gang.beats = {0: Beat(100, None), 1: Beat(100, None)}  # both have said that they pause

    assert gang.run(100_000) is None


def test_stillness_during_our_own_pause_does_not_count() -> None:
    gang = still_gang()
    gang.run(10)
    gang.now += 5000.0  # the agent was stopped, and so were the workers

    assert gang.run(59) is None
    assert gang.run(10) is not None


def test_missing_beats_are_told_once_with_what_will_be_found() -> None:
    gang = still_gang()
    gang.still_since = None
    gang.run(1000)
    gang.restart()
    gang.run(1000)

    assert gang.told == [NoBeatsYet(60.0)]


def test_that_nothing_can_be_found_is_told_at_once() -> None:
    gang = still_gang()
    gang.can_see = False

    assert gang.run(1000) is None
    assert gang.told == [NoBeatsYet(None)]


def test_an_answer_that_comes_when_the_gang_has_begun_to_beat_changes_nothing() -> None:
    gang = still_gang()
    gang.others_still_s = None
    gang.run(100)
    gang.machine.handle(BeatsSeen({0: Beat(1, gang.now), 1: Beat()}, 0.0), gang.now)

    assert gang.machine.handle(OthersSeen(1000.0), gang.now) == []
