"""The acceptance run on a real Docker and a real Podman."""

import psutil
import pytest

from holdfast.schedulers.containers.scheduler import ContainerScheduler
from tests.schedulers import acceptance
from tests.schedulers.containers.engines import IMAGE

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


@pytest.fixture
def shell(engine, cfg, tmp_path):
    """Return a shell for jobs on this engine."""
    options = [f"image={IMAGE}", f"init={cfg['init']}", "flags=" + ";".join(f'"{flag}"' for flag in cfg["flags"])]
    home = tmp_path / "home"
    yield acceptance.Shell(tmp_path, engine.name, ["-cfg", ",".join(options)], home)
    scheduler = ContainerScheduler(engine.name, "holdfast", home)
    for app in scheduler.list():
        scheduler.delete(app.app_id)


def test_a_killed_container_costs_no_step(shell, engine):
    acceptance.survives_a_killed_node(shell, engine.kill)


@pytest.mark.parametrize("retries", [2, 0], ids=["comes back", "another takes over"])
def test_a_killed_coordinator_costs_no_step(shell, engine, retries):
    acceptance.survives_a_killed_coordinator(shell, engine.kill, retries=retries)


def test_a_cancel_leaves_nothing(shell, engine, tmp_path):
    def left():
        home = str(tmp_path / "home")
        running = [name for name in engine.left() if "holdfast-workspace:" not in name]
        return running + [each.pid for each in psutil.process_iter(["environ"]) if home in str(each.info["environ"])]

    acceptance.a_cancel_leaves_nothing(shell, left)


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
