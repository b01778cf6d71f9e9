"""Who speaks: an agent that said so, or a worker by its environment."""

from __future__ import annotations

import os
import socket

import pytest

from holdfast.metrics import source
from holdfast.metrics.source import Source


def test_a_worker_is_known_by_its_environment() -> None:
    env = {"RANK": "3", "TORCHELASTIC_RUN_ID": "run", "ROLE_NAME": "trainer", "GROUP_RANK": "1"}

    assert source.of_worker(env, "here") == Source("run", "here", "trainer", "1", 3)
    assert source.of_worker({"RANK": "none"}, "here") == Source(host="here")


def test_only_a_rank_and_a_choice_make_a_worker() -> None:
    assert source.is_worker({"HOLDFAST_METRICS": "console", "RANK": "0"})
    assert not source.is_worker({"HOLDFAST_METRICS": "console"})
    assert not source.is_worker({"HOLDFAST_METRICS": "", "RANK": "0"})


def test_an_agent_that_announced_itself_has_no_rank_whatever_its_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "2")
    assert source.current_rank() == 2
    source.announce("run", "trainer")

    assert source.current() == Source("run", socket.gethostname(), "trainer")
    assert source.current_rank() is None


def test_a_forked_child_is_not_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setattr(source, "_announced", (os.getpid() + 1, Source("run")))

    assert source.current_rank() == 2
