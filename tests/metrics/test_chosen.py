"""Sinks chosen by name: from flags and plugins to values that arrive."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from holdfast import metrics
from holdfast.errors import UsageError
from holdfast.facts import Fact
from holdfast.metrics import api
from holdfast.metrics.chosen import Metrics, check, configure_from
from tests.metrics.conftest import PATIENCE_S, Remembering

FOREIGN = """
    import threading
    import holdfast.metrics as metrics

    entered, let_go = threading.Event(), threading.Event()

    class Handler(metrics.MetricHandler):
        def __init__(self, argument):
            self.argument, self.taken, self.story = argument, [], []
        def emit(self, data):
            self.taken.append((data.group_name, data.name, data.value))
        def flush(self):
            self.story.append("flush")
        def close(self):
            self.story.append("close")

    class Raising(Handler):
        def emit(self, data):
            raise RuntimeError("no")

    class Blocking(Handler):
        def emit(self, data):
            entered.set()
            let_go.wait()

    made = []
    def create(argument):
        made.append(Handler(argument))
        return made[-1]
    def create_raising(argument):
        return Raising(argument)
    def create_blocking(argument):
        return Blocking(argument)
    def explode(argument):
        raise ConnectionError("the service is down")
    def create_nothing(argument):
        return None
"""
POINTS = {
    "mine": "foreign_metrics:create",
    "raising": "foreign_metrics:create_raising",
    "blocking": "foreign_metrics:create_blocking",
    "exploding": "foreign_metrics:explode",
    "missing": "foreign_missing:create",
    "nothing": "foreign_metrics:create_nothing",
}


@pytest.fixture
def foreign(install_plugins):
    install_plugins(FOREIGN, POINTS)
    import foreign_metrics

    return foreign_metrics


def lines_of(path: Path) -> list[tuple[str, str, float]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["group"], line["name"], line["value"]) for line in found]


def test_values_of_all_groups_go_to_the_sink_and_a_groups_own_sink_beats_it(tmp_path: Path) -> None:
    chosen = configure_from([f"jsonl:{tmp_path}/all.jsonl,my_app=jsonl:{tmp_path}/mine.jsonl"])
    metrics.getStream("my_app").add_value("loss", 0.5)
    metrics.put_metric("restarts", 1)
    chosen.close(PATIENCE_S)

    assert lines_of(tmp_path / "mine.jsonl") == [("my_app", "loss", 0.5)]
    assert lines_of(tmp_path / "all.jsonl") == [("torchelastic", "restarts", 1)]


def test_several_sinks_of_one_group_all_get_its_values(tmp_path: Path, foreign) -> None:
    chosen = configure_from([f"jsonl:{tmp_path}/a.jsonl", f"mine:here,jsonl:{tmp_path}/b.jsonl"])
    metrics.put_metric("x", 1, "g")
    assert chosen.flush(PATIENCE_S)

    (handler,) = foreign.made
    assert handler.argument == "here"
    assert handler.taken == lines_of(tmp_path / "a.jsonl") == lines_of(tmp_path / "b.jsonl") == [("g", "x", 1)]
    chosen.close(PATIENCE_S)
    assert handler.story == ["flush", "close"]


def test_one_sink_for_two_groups_is_opened_once(foreign) -> None:
    chosen = configure_from(["a=mine:x,b=mine:x,c=mine:y"])
    for group in "abcd":
        metrics.put_metric("v", 1, group)
    assert chosen.flush(PATIENCE_S)

    assert [(handler.argument, handler.taken) for handler in foreign.made] == [
        ("x", [("a", "v", 1), ("b", "v", 1)]),
        ("y", [("c", "v", 1)]),
    ]


def test_an_unknown_sink_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"there is no metrics sink 'jsonll'; did you mean jsonl\? there are: console, "
    ):
        configure_from([f"jsonl:{tmp_path}/a.jsonl,jsonll:b"])

    assert list(tmp_path.iterdir()) == []


def test_a_wrong_argument_is_refused_and_leaves_nothing_installed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write jsonl:PATH"):
        configure_from([f"jsonl:{tmp_path}/a.jsonl,jsonl"])

    assert api.installed() is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "the plugin 'missing' of foreign (holdfast.metrics: foreign_missing:create) cannot be loaded"),
        ("exploding", "it raised ConnectionError('the service is down')"),
        ("nothing", "made a NoneType, which has no 'emit'"),
    ],
)
@pytest.mark.usefixtures("foreign")
def test_a_broken_sink_is_named_and_costs_only_itself(name: str, why: str, tmp_path: Path, heard: list[Fact]) -> None:
    chosen = configure_from([f"{name},jsonl:{tmp_path}/a.jsonl"])
    metrics.put_metric("x", 1)
    chosen.close(PATIENCE_S)

    (fact,) = [fact for fact in heard if fact.kind == "plugin_broken"]
    assert fact.sentence.startswith(f"the metrics sink '{name}' is left out: ")
    assert why in fact.sentence
    assert lines_of(tmp_path / "a.jsonl") == [("torchelastic", "x", 1)]


def test_a_sink_that_raises_is_reported_once(foreign, heard: list[Fact]) -> None:
    chosen = configure_from(["raising"])
    for number in range(3):
        metrics.put_metric("x", number)
    assert chosen.flush(PATIENCE_S)

    assert [fact.sentence for fact in heard] == [
        "the metrics sink 'raising' raised RuntimeError('no'); it is still called, and further errors are not reported"
    ]


def test_a_sink_that_blocks_never_blocks_the_caller(foreign, tmp_path: Path) -> None:
    """The other sink goes on, and closing gives up on the one that blocks."""
    chosen = configure_from([f"jsonl:{tmp_path}/a.jsonl,blocking"])
    metrics.put_metric("x", 0)
    assert foreign.entered.wait(PATIENCE_S)
    for number in range(1, 100):
        metrics.put_metric("x", number)
    other, stuck = chosen._queues
    assert other.flush(PATIENCE_S)
    assert not stuck.flush(0.01)
    chosen.close(0.01)
    foreign.let_go.set()

    assert [value for _, _, value in lines_of(tmp_path / "a.jsonl")] == list(range(100))


def test_what_the_program_configures_beats_what_the_launch_chose(tmp_path: Path) -> None:
    handler = Remembering()
    chosen = configure_from([f"jsonl:{tmp_path}/a.jsonl"])
    metrics.configure(handler, group="my_app")
    metrics.put_metric("x", 1, "my_app")
    metrics.put_metric("y", 2, "other")
    chosen.close(PATIENCE_S)

    assert handler.values == [("my_app", "x", 1)]
    assert lines_of(tmp_path / "a.jsonl") == [("other", "y", 2)]


def test_choosing_anew_closes_what_was_chosen_before(foreign) -> None:
    configure_from(["mine:old"])
    configure_from(["mine:new"])
    metrics.put_metric("x", 1)
    launch = api.installed()
    assert isinstance(launch, Metrics)
    launch.close(PATIENCE_S)

    old, new = foreign.made
    assert (old.taken, old.story) == ([], ["close"])
    assert (new.taken, new.story) == ([("torchelastic", "x", 1)], ["flush", "close"])


def test_values_after_closing_are_forgotten(tmp_path: Path) -> None:
    chosen = configure_from([f"jsonl:{tmp_path}/a.jsonl"])
    chosen.close(PATIENCE_S)
    chosen.close(PATIENCE_S)
    metrics.put_metric("x", 1)

    assert (tmp_path / "a.jsonl").read_text() == ""
    assert api.installed() is api.NO_SINKS


def test_workers_are_told_the_same_sinks_with_full_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = configure_from(["my_app=jsonl:m,,x.jsonl", "console"])

    assert chosen.worker_environment() == {"HOLDFAST_METRICS": f"my_app=jsonl:{tmp_path}/m,,x.jsonl,console"}
    assert (tmp_path / "m,x.jsonl").exists()
    assert configure_from([]).worker_environment() == {}


def test_prometheus_brings_a_registry_and_a_socket_for_the_workers() -> None:
    chosen = configure_from(["prometheus"])
    path = Path(chosen.worker_environment()["HOLDFAST_METRICS_SOCKET"])

    assert chosen.registry is not None
    assert path.is_socket()
    assert path.stat().st_mode & 0o077 == 0
    chosen.close(PATIENCE_S)
    assert not path.parent.exists()


def test_our_own_sinks_come_through_the_same_door() -> None:
    names = {choice.name for choice in check(["null,console,jsonl:x,prometheus,otlp,statsd"])}

    assert names == {"null", "console", "jsonl", "prometheus", "otlp", "statsd"}


def test_null_needs_no_thread() -> None:
    before = threading.active_count()
    configure_from(["null"])
    metrics.put_metric("x", 1)

    assert threading.active_count() == before
    assert os.environ.get("HOLDFAST_METRICS") is None
