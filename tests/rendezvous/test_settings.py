"""Parameters become settings under our names and torchrun's."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.coordinator.messages import Admit
from holdfast.errors import UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.rendezvous.settings import node_settings, parse_admit, run_settings


def params(**config: Any) -> RendezvousParameters:
    return RendezvousParameters("holdfast", "localhost:0", "r", 1, 4, **config)


def test_the_defaults_are_those_of_the_documents() -> None:
    run, node = run_settings(params()), node_settings(params())

    assert (run.last_call_s, run.quiet_s, run.admit) == (30.0, 3.0, Admit.AT_ONCE)
    assert (node.lease_s, node.join_timeout_s, node.node_rank) == (5.0, 600.0, -1)


def test_torchruns_keys_keep_their_meaning() -> None:
    given = params(join_timeout="7", last_call_timeout="2", keep_alive_interval="1", keep_alive_max_attempt="4")

    assert node_settings(given).join_timeout_s == 7.0
    assert run_settings(given).last_call_s == 2.0
    assert node_settings(given).lease_s == 4.0


def test_torchruns_rendezvous_timeout_counts_unless_join_timeout_is_given() -> None:
    assert node_settings(params(timeout=900)).join_timeout_s == 900.0
    assert node_settings(params(timeout=900, join_timeout=3)).join_timeout_s == 3.0


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(UsageError, match="'lease'"):
        node_settings(params(lease="soon"))


@pytest.mark.parametrize(
    ("text", "policy"),
    [("at-once", (Admit.AT_ONCE, 0.0)), ("restart", (Admit.RESTART, 0.0)), ("every:10m", (Admit.EVERY, 600.0))],
)
def test_admission_policies(text: str, policy: tuple[Admit, float]) -> None:
    assert parse_admit(text) == policy


@pytest.mark.parametrize("text", ["", "sometimes", "every", "at-once:3"])
def test_other_admission_policies_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="at-once, restart, or every:TIME"):
        parse_admit(text)
