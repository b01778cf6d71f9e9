"""Real engines for the tests that need one; where there is none they are skipped by name."""

import contextlib

import pytest

from holdfast.schedulers.containers.scheduler import ContainerScheduler
from tests.schedulers.containers.engines import ENGINES, TestEngine, why_not


@pytest.fixture(scope="session", params=ENGINES)
def engine_of_session(request, tmp_path_factory):
    if reason := why_not(request.param):
        pytest.skip(reason)
    engine = TestEngine(request.param, tmp_path_factory.mktemp(request.param[:1]))
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(engine_of_session, monkeypatch):
    """Make the engine's command talk to the engine of the tests; nothing of a test is left there."""
    for name, value in engine_of_session.environ.items():
        monkeypatch.setenv(name, value)
    yield engine_of_session
    assert engine_of_session.left() == []


@pytest.fixture
def cfg(engine):
    """Run options with which the image of the tests can run programs."""
    return {"flags": engine.flags(), "init": engine.name == "docker"}


@pytest.fixture
def make(engine, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    yield lambda: ContainerScheduler(engine.name, "contract", tmp_path)
    with contextlib.closing(ContainerScheduler(engine.name, "contract", tmp_path)) as scheduler:
        for app in scheduler.list():
            scheduler.delete(app.app_id)
        assert scheduler.list() == []
