"""What every tracker must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", tracker_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_tracker)

`make()` returns a tracker that knows no runs, and `make()` called again another object that knows the same ones. A case
fails with an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.testing.cases import Background, Cases
from holdfast.tracker.api import TrackerArtifact, TrackerBase, TrackerSource

Make = Callable[[], TrackerBase]
Case = Callable[[Make], None]

#: Run ids are handles of jobs where Holdfast makes them.
RUN, OTHER = "local://holdfast/train-x7k2", "a run/with: odd %20 größe"

_case: Cases[Case] = Cases()


def tracker_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return _case.all()


@_case
def an_unknown_run_has_nothing(make: Make) -> None:
    """Asking for it raises no error."""
    tracker = make()

    assert dict(tracker.artifacts(RUN)) == {}
    assert dict(tracker.metadata(RUN)) == {}
    assert list(tracker.sources(RUN)) == []
    assert (tracker.lineage(RUN).sources, tracker.lineage(RUN).descendants) == ([], [])
    assert list(tracker.run_ids()) == []


@_case
def artifacts_are_kept_by_name(make: Make) -> None:
    """With path and metadata; of equal names the latest holds, and runs do not mix."""
    tracker = make()
    tracker.add_artifact(RUN, "model", "/models/1", {"step": 100, "tags": ["a", "b"]})
    tracker.add_artifact(RUN, "log", "/logs")
    tracker.add_artifact(RUN, "model", "/models/2", {"step": 200})
    tracker.add_artifact(OTHER, "model", "/models/other")

    found = make().artifacts(RUN)
    assert set(found) == {"model", "log"}
    assert found["model"] == TrackerArtifact("model", "/models/2", {"step": 200})
    assert (found["log"].path, found["log"].metadata or None) == ("/logs", None)
    assert make().artifacts(OTHER)["model"].path == "/models/other"


@_case
def metadata_adds_up(make: Make) -> None:
    """Plain values come back as they were; of equal names the latest holds."""
    tracker = make()
    tracker.add_metadata(RUN, loss=0.5, epochs=3, name="größe", done=False, nothing=None, rates=[0.1, 0.2])
    tracker.add_metadata(RUN, loss=0.25, more={"a": 1})

    assert dict(make().metadata(RUN)) == {
        "loss": 0.25,
        "epochs": 3,
        "name": "größe",
        "done": False,
        "nothing": None,
        "rates": [0.1, 0.2],
        "more": {"a": 1},
    }


@_case
def sources_are_kept_with_their_artifact(make: Make) -> None:
    """A source is another run or any name, and may be asked for by artifact."""
    tracker = make()
    tracker.add_source(RUN, OTHER)
    tracker.add_source(RUN, "s3://data/set-1", "images")

    found = sorted(make().sources(RUN), key=lambda each: each.artifact_name or "")
    assert found == [TrackerSource(OTHER, None), TrackerSource("s3://data/set-1", "images")]
    assert list(make().sources(RUN, "images")) == [TrackerSource("s3://data/set-1", "images")]
    assert list(make().sources(RUN, "labels")) == []


@_case
def lineage_goes_both_ways(make: Make) -> None:
    """A run knows what it was made from, and its source knows the run."""
    tracker = make()
    tracker.add_metadata(OTHER, loss=1)
    tracker.add_source(RUN, OTHER)

    assert make().lineage(RUN).sources == [TrackerSource(OTHER, None)]
    assert list(make().lineage(OTHER).descendants) == [RUN]
    assert list(make().lineage(RUN).descendants) == []


@_case
def runs_are_listed_by_their_own_ids(make: Make) -> None:
    """Once each, however much they have told."""
    tracker = make()
    for run_id in (RUN, OTHER):
        tracker.add_metadata(run_id, a=1)
        tracker.add_artifact(run_id, "model", "/m")
        tracker.add_metadata(run_id, b=2)

    assert sorted(make().run_ids()) == sorted([RUN, OTHER])


@_case
def workers_may_tell_at_the_same_time(make: Make) -> None:
    """What each of several workers adds to one run is there afterwards."""
    ranks = range(4)

    def tell(rank: int) -> None:
        tracker = make()
        for number in range(5):
            tracker.add_metadata(RUN, **{f"rank{rank}.{number}": rank})
            tracker.add_artifact(RUN, f"rank{rank}.{number}", f"/{rank}")

    for each in [Background(lambda rank=rank: tell(rank)) for rank in ranks]:  # type: ignore[misc]
        each.result()

    names = {f"rank{rank}.{number}" for rank in ranks for number in range(5)}
    assert set(make().metadata(RUN)) == names
    assert set(make().artifacts(RUN)) == names
