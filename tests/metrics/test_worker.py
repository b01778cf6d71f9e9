"""In a worker, what the launch chose is found when the first value is added."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.metrics.chosen import configure_from
from holdfast.metrics.sinks.prometheus import render
from tests.metrics.conftest import PATIENCE_S

TRAIN = """
    import holdfast.metrics as metrics
    metrics.getStream("my_app").add_value("loss", 0.25)
"""


def lines_of(path: Path) -> list[tuple[object, ...]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["group"], line["name"], line["value"], line.get("rank")) for line in found]


def test_a_scripts_own_values_reach_the_sink_of_the_command_line(run_worker, tmp_path: Path) -> None:
    done = run_worker(TRAIN, HOLDFAST_METRICS="jsonl:m.jsonl", RANK="3")

    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(tmp_path / "m.jsonl") == [("my_app", "loss", 0.25, 3)]


def test_the_console_of_a_worker_prints_the_seeds_format(run_worker) -> None:
    done = run_worker(TRAIN, HOLDFAST_METRICS="console", RANK="0")

    assert done.stdout.endswith("][my_app]: loss=0.25\n")


def test_a_process_that_is_no_worker_is_left_alone(run_worker, tmp_path: Path) -> None:
    done = run_worker(TRAIN, HOLDFAST_METRICS="jsonl:m.jsonl")

    assert done.returncode == 0
    assert not (tmp_path / "m.jsonl").exists()


def test_what_the_script_configures_itself_holds_and_the_launch_has_the_rest(run_worker, tmp_path: Path) -> None:
    done = run_worker(
        """
        import holdfast.metrics as metrics
        metrics.configure(metrics.ConsoleMetricHandler(), group="my_app")
        metrics.getStream("my_app").add_value("loss", 1)
        metrics.getStream("other").add_value("x", 2)
        """,
        HOLDFAST_METRICS="jsonl:m.jsonl",
        RANK="0",
    )

    assert done.stdout.endswith("[my_app]: loss=1\n")
    assert lines_of(tmp_path / "m.jsonl") == [("other", "x", 2, 0)]


def test_values_of_a_script_that_dies_of_an_exception_are_kept(run_worker, tmp_path: Path) -> None:
    done = run_worker(TRAIN + "\n    raise SystemExit(7)", HOLDFAST_METRICS="jsonl:m.jsonl", RANK="0")

    assert done.returncode == 7
    assert lines_of(tmp_path / "m.jsonl") == [("my_app", "loss", 0.25, 0)]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("jsonll:x", "there is no metrics sink 'jsonll'"),
        ("=", "HOLDFAST_METRICS cannot be read, so no metrics are kept"),
        ("prometheus", "HOLDFAST_METRICS_SOCKET is not set"),
        ("jsonl:/proc/nowhere/m.jsonl", "cannot write /proc/nowhere"),
    ],
)
def test_a_choice_that_cannot_be_had_is_told_once_and_never_disturbs_the_training(
    chosen: str, words: str, run_worker
) -> None:
    done = run_worker(
        """
        import holdfast.metrics as metrics
        for number in range(100):
            metrics.getStream("my_app").add_value("loss", number)
        print("trained")
        """,
        HOLDFAST_METRICS=chosen,
        RANK="0",
    )

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count(words) == 1


def test_a_broken_plugin_is_named_in_the_worker(install_plugins, run_worker) -> None:
    folder = install_plugins("", {"broken": "foreign_missing:create"})
    done = run_worker(TRAIN, HOLDFAST_METRICS="broken", RANK="0", PYTHONPATH=str(folder))

    assert done.returncode == 0
    assert "the plugin 'broken' of foreign (holdfast.metrics: foreign_missing:create) cannot be loaded" in done.stderr


def test_a_sink_that_never_returns_does_not_hold_up_the_workers_end(install_plugins, run_worker) -> None:
    folder = install_plugins(
        """
        import threading
        import holdfast.metrics as metrics
        class Stuck(metrics.MetricHandler):
            def emit(self, data):
                threading.Event().wait()
        def create(argument):
            return Stuck()
        """,
        {"stuck": "foreign_metrics:create"},
    )
    done = run_worker(TRAIN + '\n    print("trained")', HOLDFAST_METRICS="stuck", RANK="0", PYTHONPATH=str(folder))

    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_a_worker_forked_from_a_process_that_looked_already_looks_again(run_worker, tmp_path: Path) -> None:
    """So it is with a warm template: modules may add values before it is forked and becomes a worker."""
    done = run_worker(
        """
        import os, sys
        import holdfast.metrics as metrics
        stream = metrics.getStream("my_app")
        stream.add_value("imported", 0)
        children = []
        for rank in range(3):
            pid = os.fork()
            if pid == 0:
                os.environ.update(HOLDFAST_METRICS="jsonl:m.jsonl", RANK=str(rank))
                stream.add_value("loss", rank)
                sys.exit(0)
            children.append(pid)
        sys.exit(max(os.waitpid(pid, 0)[1] for pid in children))
        """
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(lines_of(tmp_path / "m.jsonl")) == [("my_app", "loss", rank, rank) for rank in range(3)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_values_of_a_function_worker_and_of_the_agent_that_started_it_arrive(
    method: str, run_worker, tmp_path: Path
) -> None:
    """A child of multiprocessing that was forked ends without atexit; what an agent left in its queue stays its own."""
    done = run_worker(
        f"""
        import multiprocessing, os, warnings
        import holdfast.metrics as metrics
        from holdfast.metrics.chosen import configure_from

        def train(rank):
            os.environ.update(env, RANK=str(rank))
            metrics.put_metric("loss", rank)

        env = {{"HOLDFAST_METRICS": "jsonl:m.jsonl"}}

        if __name__ == "__main__":
            warnings.simplefilter("ignore", DeprecationWarning)
            chosen = configure_from(["jsonl:m.jsonl"])
            metrics.put_metric("agents", 1)
            context = multiprocessing.get_context({method!r})
            workers = [context.Process(target=train, args=(rank,)) for rank in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0
            chosen.close(60)
        """
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(lines_of(tmp_path / "m.jsonl"), key=str) == [
        ("torchelastic", "agents", 1, None),
        ("torchelastic", "loss", 0, 0),
        ("torchelastic", "loss", 1, 1),
    ]


def test_a_child_that_an_agent_forks_leaves_the_agents_sinks_and_socket_alone(run_worker, tmp_path: Path) -> None:
    """The child ends as any program does, atexit included."""
    pytest.importorskip("prometheus_client", reason="needs prometheus-client")
    done = run_worker(
        """
        import os, sys, warnings
        import holdfast.metrics as metrics
        from holdfast.metrics.chosen import configure_from

        warnings.simplefilter("ignore", DeprecationWarning)
        chosen = configure_from(["prometheus,jsonl:m.jsonl"])
        for queue in chosen._queues:
            queue.outbox._finish = lambda: os.write(1, b"closed by the child" if pid == 0 else b"")
        metrics.put_metric("x", 1)
        pid = os.fork()
        if pid == 0:
            metrics.put_metric("nobody listens in a child that is no worker", 1)
            sys.exit(0)
        os.waitpid(pid, 0)
        assert chosen.relay.path.is_socket()
        chosen.close(60)
        assert not chosen.relay.path.parent.exists()
        """
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert lines_of(tmp_path / "m.jsonl") == [("torchelastic", "x", 1, None)]


def test_a_workers_values_can_be_scraped_from_its_agent(run_worker) -> None:
    pytest.importorskip("prometheus_client", reason="needs prometheus-client")
    chosen = configure_from(["prometheus"])
    done = run_worker(TRAIN, **chosen.worker_environment(), RANK="5")
    relay, registry = chosen.relay, chosen.registry
    assert relay is not None
    chosen.close(PATIENCE_S)  # takes what has arrived

    assert (done.returncode, done.stderr) == (0, "")
    assert b'holdfast_loss{group="my_app",rank="5"} 0.25' in render(registry)


def test_the_first_value_opens_nothing_on_the_callers_thread(install_plugins, run_worker) -> None:
    """Importing a sink and connecting it may take seconds; the training does not wait for that."""
    folder = install_plugins(
        """
        import threading
        print("imported on", threading.current_thread().name, flush=True)
        import holdfast.metrics as metrics
        def create(argument):
            return metrics.NullMetricHandler()
        """,
        {"late": "foreign_metrics:create"},
    )
    done = run_worker(TRAIN, HOLDFAST_METRICS="late", RANK="0", PYTHONPATH=str(folder))

    assert done.stdout == "imported on holdfast the metrics sink 'late'\n"
