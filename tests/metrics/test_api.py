"""Streams, handlers and `configure`: where values go, and what a careless handler cannot do."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from holdfast import metrics
from holdfast.facts import Fact
from holdfast.metrics import api
from holdfast.metrics.chosen import Metrics, QueueingMetricHandler
from tests.metrics.conftest import PATIENCE_S, Remembering


class Raising(metrics.MetricHandler):
    def __init__(self) -> None:
        self.calls = 0

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.calls += 1
        raise RuntimeError("the metrics service is down")


def test_a_value_arrives_with_its_time_group_and_name() -> None:
    handler = Remembering()
    metrics.configure(handler)
    before = time.time()
    metrics.getStream("my_app").add_value("loss", 0.25)

    (data,) = handler.taken
    assert data[1:] == ("my_app", "loss", 0.25)
    assert before <= data.timestamp <= time.time()


def test_without_configuration_values_are_forgotten() -> None:
    metrics.getStream("my_app").add_value("loss", 1)

    assert api.installed() is api.NO_SINKS


def test_a_stream_follows_the_first_configure_after_values_that_were_lost() -> None:
    stream = metrics.getStream("my_app")
    stream.add_value("lost", 0)
    handler = Remembering()
    metrics.configure(handler)
    stream.add_value("a", 1)

    assert handler.values == [("my_app", "a", 1)]


def test_a_stream_follows_every_later_configure() -> None:
    stream = metrics.getStream("my_app")
    first, second = Remembering(), Remembering()
    metrics.configure(first)
    stream.add_value("a", 1)
    metrics.configure(second)
    stream.add_value("b", 2)
    metrics.configure(metrics.NullMetricHandler())
    stream.add_value("lost", 3)

    assert first.values == [("my_app", "a", 1)]
    assert second.values == [("my_app", "b", 2)]


@pytest.mark.parametrize("group_first", [True, False])
def test_a_groups_handler_beats_the_default_whichever_came_first(group_first: bool) -> None:
    default, own = Remembering(), Remembering()
    calls = [lambda: metrics.configure(own, group="my_app"), lambda: metrics.configure(default)]
    for call in calls if group_first else reversed(calls):
        call()
    metrics.getStream("my_app").add_value("mine", 1)
    metrics.getStream("other").add_value("others", 2)

    assert own.values == [("my_app", "mine", 1)]
    assert default.values == [("other", "others", 2)]


def test_a_group_can_be_silenced_while_the_rest_is_heard() -> None:
    handler = Remembering()
    metrics.configure(handler)
    metrics.configure(metrics.NullMetricHandler(), group="chatter")
    metrics.put_metric("x", 1, "chatter")
    metrics.put_metric("y", 2)

    assert handler.values == [("torchelastic", "y", 2)]


def test_a_stream_with_its_own_handler_stays_with_it() -> None:
    own, other = Remembering(), Remembering()
    stream = metrics.MetricStream("my_app", own)
    metrics.configure(other)
    stream.add_value("x", 1)

    assert (own.values, other.values) == ([("my_app", "x", 1)], [])


def test_a_handler_that_raises_is_reported_once_and_never_reaches_the_program(heard: list[Fact]) -> None:
    handler = Raising()
    metrics.configure(handler)
    metrics.configure(handler, group="my_app")
    for group in ("my_app", "other", "my_app"):
        metrics.getStream(group).add_value("x", 1)

    assert handler.calls == 3
    assert [fact.sentence for fact in heard] == [
        "the metric handler Raising raised RuntimeError('the metrics service is down'); "
        "it is still called, and further errors are not reported"
    ]


def test_streams_may_be_shared_by_threads_while_handlers_change() -> None:
    """Each value goes to one of the handlers, none is lost and none doubled."""
    handlers = [Remembering() for _ in range(50)]
    stream = metrics.getStream("my_app")
    metrics.configure(handlers[0])
    go = threading.Event()

    def add(who: int) -> None:
        go.wait(PATIENCE_S)
        for number in range(2000):
            stream.add_value(str(who), number)

    threads = [threading.Thread(target=add, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    for handler in handlers[1:]:
        metrics.configure(handler)
    for thread in threads:
        thread.join()

    values = sorted((name, value) for handler in handlers for _, name, value in handler.values)
    assert values == [(str(who), number) for who in range(4) for number in range(2000)]


def test_the_console_handler_prints_the_seeds_format(capsys: pytest.CaptureFixture[str]) -> None:
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1574213883.4182858, "my_app", "my_metric", 7))

    assert capsys.readouterr().out == "[1574213883.4182858][my_app]: my_metric=7\n"
    assert metrics.ConsoleMetricsHandler is metrics.ConsoleMetricHandler


# -- measuring calls -----------------------------------------------------------------------------------------


class Trainer:
    @metrics.prof
    def step(self, fail: bool = False) -> str:
        if fail:
            raise KeyError("a bad step")
        return "done"

    @metrics.prof(group="my_app")
    def save(self) -> None:
        """Save nothing."""


@metrics.prof
def calculate() -> int:
    return 42


def test_prof_tells_success_and_duration_under_the_qualified_name() -> None:
    handler = Remembering()
    metrics.configure(handler)

    assert Trainer().step() == "done"
    assert [name for _, name, _ in handler.values] == ["Trainer.step.success", "Trainer.step.duration.ms"]
    assert handler.values[0] == ("torchelastic", "Trainer.step.success", 1)
    assert isinstance(handler.values[1][2], int)


def test_prof_tells_failure_and_lets_the_error_through() -> None:
    handler = Remembering()
    metrics.configure(handler)
    with pytest.raises(KeyError, match="a bad step"):
        Trainer().step(fail=True)

    assert [name for _, name, _ in handler.values] == ["Trainer.step.failure", "Trainer.step.duration.ms"]


def test_prof_takes_a_group_and_keeps_the_functions_name_and_words() -> None:
    handler = Remembering()
    metrics.configure(handler)
    Trainer().save()

    assert {group for group, _, _ in handler.values} == {"my_app"}
    assert (Trainer.save.__name__, Trainer.save.__doc__) == ("save", "Save nothing.")


def test_a_plain_function_is_named_with_its_module() -> None:
    handler = Remembering()
    metrics.configure(handler)

    assert calculate() == 42
    assert handler.values[0][1] == "test_api.calculate.success"


def test_the_deprecated_names_work_and_say_what_to_use() -> None:
    handler = Remembering()
    metrics.configure(handler)
    with pytest.warns(FutureWarning, match="use put_metric"):
        metrics.publish_metric("my_app", "x", 1)
    with pytest.warns(FutureWarning, match="use prof"):
        measured = metrics.profile("my_app")(lambda: 7)

    assert measured() == 7
    assert handler.values[:2] == [("my_app", "x", 1), ("my_app", "<lambda>.success", 1)]


def test_elapsed_time_is_in_whole_milliseconds() -> None:
    elapsed = metrics.get_elapsed_time_ms(time.time() - 1.5)

    assert isinstance(elapsed, int)
    assert elapsed >= 1500


# -- initialize_metrics --------------------------------------------------------------------------------------


def test_initialize_metrics_without_a_choice_changes_nothing() -> None:
    metrics.initialize_metrics()
    metrics.initialize_metrics(metrics.MetricsConfig())

    assert api.installed() is None


def test_initialize_metrics_opens_the_sinks_of_its_config(tmp_path) -> None:
    metrics.initialize_metrics(metrics.MetricsConfig({"sinks": f"jsonl:{tmp_path / 'm.jsonl'}"}))
    metrics.put_metric("x", 1)
    launch = api.installed()
    assert isinstance(launch, Metrics)
    launch.close(PATIENCE_S)

    assert '"name": "x"' in (tmp_path / "m.jsonl").read_text()


# -- cost ----------------------------------------------------------------------------------------------------


def test_a_queued_handler_may_be_configured_in_code_too() -> None:
    handler = Remembering()
    queued = QueueingMetricHandler("mine", handler)
    metrics.configure(queued)
    metrics.getStream("g").add_value("x", 1)

    assert queued.flush(PATIENCE_S)
    assert handler.values == [("g", "x", 1)]
    queued.close(PATIENCE_S)


def test_importing_metrics_brings_nothing_heavy() -> None:
    code = (
        "import sys, holdfast.metrics;"
        "heavy = {'msgspec', 'prometheus_client', 'opentelemetry', 'asyncio', 'logging', 'dataclasses', 'json'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_torchs_metrics_have_no_name_that_ours_lack() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.metrics", reason="needs torch")
    public = {"MetricData", "MetricHandler", "MetricStream", "MetricsConfig"} | {
        name
        for name in vars(theirs)
        if not name.startswith("_")
        and getattr(vars(theirs)[name], "__module__", "") == "torch.distributed.elastic.metrics.api"
    }

    assert public - set(vars(metrics)) == set()


@pytest.mark.torch
def test_prof_names_what_it_measures_as_torchs_does() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.metrics.api", reason="needs torch")
    for function in (Trainer.step, Trainer.save, calculate, test_elapsed_time_is_in_whole_milliseconds):
        assert api._metric_name(function) == theirs._get_metric_name(function)
