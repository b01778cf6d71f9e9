"""The health port shows metrics without another flag, and costs nothing noticeable until a request comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.facts import Fact, FactBook
from holdfast.metrics import source
from holdfast.metrics.api import PLATFORM_GROUP, MetricData, MetricStream
from holdfast.metrics.chosen import configure_from
from holdfast.metrics.platform import PlatformMetrics
from holdfast.metrics.relay import RelayHandler
from holdfast.metrics.scraping import Scraping
from tests.launcher.conftest import launch
from tests.metrics.conftest import Remembering
from tests.processes import free_port

__all__ = ["launch"]

pytest.importorskip("prometheus_client", reason="needs prometheus-client")


@pytest.fixture
def scraping():
    made = Scraping("trainer")
    made.start()
    yield made
    made.close()


def test_workers_are_told_where_to_hand_their_values(scraping: Scraping) -> None:
    env = scraping.worker_environment(None, {})

    assert env[source.METRICS_VARIABLE] == "prometheus"
    assert Path(env[source.SOCKET_VARIABLE]).is_socket()
    scraping.close()
    assert not Path(env[source.SOCKET_VARIABLE]).exists()
    assert scraping.worker_environment(None, {}) == {}


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("console", "console,prometheus"),
        ("my_app=jsonl:/x", "my_app=jsonl:/x,prometheus,my_app=prometheus"),
        ("null", "null"),
        ("my_app=null", "my_app=null,prometheus"),
        ("prometheus,my_app=console", "prometheus,my_app=console,my_app=prometheus"),
        ("", "prometheus"),
    ],
)
def test_what_was_chosen_stays_and_every_group_is_scraped_besides(scraping: Scraping, chosen: str, told: str) -> None:
    assert scraping.worker_environment(None, {source.METRICS_VARIABLE: chosen})[source.METRICS_VARIABLE] == told
    assert scraping.worker_environment(None, {source.METRICS_VARIABLE: "="}) == {}


def test_what_the_launch_chose_is_handed_on(scraping: Scraping) -> None:
    chosen = configure_from(["console"])
    env = scraping.worker_environment(chosen, {})
    chosen.close()

    assert env[source.METRICS_VARIABLE] == "console,prometheus"


def test_a_workers_values_are_shown_with_its_rank(scraping: Scraping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    handler = RelayHandler(scraping.worker_environment(None, {})[source.SOCKET_VARIABLE])
    handler.emit(MetricData(1.0, "my_app", "loss", 0.5))
    handler.close()
    scraping.close()  # delivers what has arrived

    page, kind = scraping.scrape()
    assert b'holdfast_loss{group="my_app",rank="3"} 0.5' in page
    assert kind.startswith("text/plain")
    scraping.keep_ranks([0])
    assert b"holdfast_loss{" not in scraping.scrape()[0]


def test_the_platforms_metrics_go_to_the_stream_that_they_are_given() -> None:
    book, taken = FactBook(), Remembering()
    platform = PlatformMetrics("trainer", book, MetricStream(PLATFORM_GROUP, taken))
    platform.start()
    book.publish(Fact("workers_started", "started", {"group_world_size": 4, "world_size": 8}))
    platform.stop()

    assert (PLATFORM_GROUP, "membership.nodes", 4) in [each[1:] for each in taken.taken]


#: Keeps values as an agent does, and says what was imported before and after the first scrape.
UNSCRAPED = """
import sys
from holdfast.metrics.api import MetricData
from holdfast.metrics.scraping import Scraping
scraping = Scraping("trainer")
scraping.start()
for number in range(100_000):
    scraping._handler.record(MetricData(1.0, "g", "loss", number), number % 8)
    scraping._handler.record(MetricData(1.0, "g", "step_ms", number % 50), number % 8)
print("prometheus_client" in sys.modules)
page, _ = scraping.scrape()
print("prometheus_client" in sys.modules, page.count(b"holdfast_loss{"), page.count(b"holdfast_step_ms_count{"))
scraping.close()
"""


def test_the_client_is_imported_with_the_first_scrape_and_values_are_not_piled_up_until_then() -> None:
    done = subprocess.run([sys.executable, "-c", UNSCRAPED], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == ["False", "True 8 8"], done.stderr


TRAIN = """
    import os, sys, urllib.error, urllib.request
    import holdfast.metrics as metrics
    metrics.getStream("my_app").add_value("loss", 0.25)
    page = b""
    while b"holdfast_loss" not in page or b"membership_workers" not in page:
        try:
            page = urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1] + "/metrics", timeout=240).read()
        except urllib.error.HTTPError as error:
            if error.code != 503:  # an agent that is slow to answer, as on a busy machine
                raise
    if os.environ["RANK"] == "0":
        print(page.decode())
"""


@pytest.mark.parametrize("flags", [(), ("--metrics", "prometheus"), ("--metrics", "my_app=jsonl:m.jsonl")])
def test_a_launch_with_a_health_port_is_scraped(launch, flags: tuple[str, ...]) -> None:
    port = str(free_port())
    code, out, err = launch("--health-port", port, *flags, script=TRAIN, args=(port,)).end()

    assert code == 0, err
    assert 'holdfast_loss{group="my_app",rank="0"} 0.25' in out
    assert 'holdfast_membership_workers{group="torchelastic",rank=""} 1.0' in out


def test_without_the_client_metrics_say_what_to_install(launch, tmp_path: Path) -> None:
    """A module of that name that cannot be found stands for a client that is not installed."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text("import sys; sys.modules['prometheus_client'] = None\n")
    port = str(free_port())
    script = """
        import sys, urllib.error, urllib.request
        code = 503  # what a slow agent answers, as on a busy machine
        while code == 503:
            try:
                urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1] + "/metrics", timeout=240)
            except urllib.error.HTTPError as error:
                code, text = error.code, error.read().decode()
        print(code, text)
    """
    code, out, err = launch("--health-port", port, script=script, args=(port,), PYTHONPATH=str(tmp_path / "hide")).end()

    assert code == 0, err
    assert "404 there are no metrics here" in out
    assert "pip install 'holdfast[prometheus]'" in out
