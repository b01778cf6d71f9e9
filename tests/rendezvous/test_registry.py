"""Backends are found by name, in code and by entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.errors import RendezvousError, UsageError
from holdfast.facts import Fact, facts
from holdfast.rendezvous import RendezvousHandler, RendezvousHandlerRegistry, RendezvousInfo, RendezvousParameters
from holdfast.rendezvous.registry import _GlobalRegistry


class Handler(RendezvousHandler):
    def __init__(self, params: RendezvousParameters, name: str = "mine") -> None:
        self.params, self.name = params, name

    def get_backend(self) -> str:
        return self.name

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.params.run_id

    def shutdown(self) -> bool:
        return True


PARAMS = RendezvousParameters("mine", "e", "r", 1, 1)


def test_a_registered_backend_makes_the_handler() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", Handler)

    assert isinstance(registry.create_handler(PARAMS), Handler)


def test_registering_the_same_creator_again_is_fine_and_another_is_not() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", Handler)
    registry.register("mine", Handler)

    with pytest.raises(ValueError, match="cannot be registered"):
        registry.register("mine", lambda params: Handler(params))


def test_an_unknown_backend_is_answered_with_those_there_are() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("other", Handler)

    with pytest.raises(UsageError, match="'mine' is not registered; there are: other"):
        registry.create_handler(PARAMS)


def test_a_handler_that_calls_itself_otherwise_is_refused() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: Handler(params, "yours"))

    with pytest.raises(RendezvousError, match="calls itself 'yours'"):
        registry.create_handler(PARAMS)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real installed distribution with a good and a broken backend, in both groups."""
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torchrun.handlers]\nmine = sample_backend:get_creator\nbroken = sample_missing:get_creator\n"
        "[holdfast.rendezvous]\ndirect = sample_backend:create\n"
    )
    (tmp_path / "sample_backend.py").write_text(
        "def create(params):\n"
        "    from tests_registry_handler import Handler\n"
        "    return Handler(params, params.backend)\n"
        "def get_creator():\n"
        "    return create\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "tests_registry_handler", sys.modules[__name__])
    return tmp_path


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("backend", ["mine", "direct"])
def test_backends_come_by_entry_point_from_torchruns_group_and_from_ours(backend: str) -> None:
    made = _GlobalRegistry().create_handler(RendezvousParameters(backend, "e", "r", 1, 1))

    assert made.get_backend() == backend


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_is_reported_by_name_and_costs_only_itself() -> None:
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    registry = _GlobalRegistry()
    try:
        with pytest.raises(UsageError, match=r"'broken' of .*sample_missing:get_creator\) cannot be loaded"):
            registry.create_handler(RendezvousParameters("broken", "e", "r", 1, 1))
        assert not heard
        with pytest.raises(UsageError, match=r"'nobody' is not registered; there are: .*mine"):
            registry.create_handler(RendezvousParameters("nobody", "e", "r", 1, 1))
    finally:
        stop()

    assert any("sample_missing:get_creator) cannot be loaded" in fact.sentence for fact in heard)
    assert registry.create_handler(PARAMS).get_backend() == "mine"


def test_our_own_backends_come_through_the_same_door() -> None:
    registry = _GlobalRegistry()
    registry.discover()

    assert {"holdfast", "c10d", "static"} <= set(registry._creators)
