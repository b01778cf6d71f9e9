"""The URL by which workers meet without agents."""

from __future__ import annotations

import pytest

from holdfast.compat.torchelastic.p2p import parse_init_method
from holdfast.errors import UsageError
from holdfast.rendezvous.settings import node_settings, run_settings


def test_a_url_says_where_workers_meet_and_how_many() -> None:
    params = parse_init_method("etcd://etcd-host:2379/team/job7?min_workers=2&max_workers=3&last_call_timeout=4", 8)

    assert (params.backend, params.endpoint, params.run_id) == ("etcd", "etcd-host:2379", "team.job7")
    assert (params.min_nodes, params.max_nodes) == (2, 3)
    assert run_settings(params).last_call_s == 4


@pytest.mark.parametrize("name", ["join_timeout", "timeout"])
def test_how_long_to_wait_for_a_round_is_said_by_the_url_first(name: str) -> None:
    assert node_settings(parse_init_method("holdfast://a:1/r", 1, 30)).join_timeout_s == 30
    assert node_settings(parse_init_method(f"holdfast://a:1/r?{name}=60", 1, 30)).join_timeout_s == 60


@pytest.mark.parametrize("url", ["tcp://a:1/r", "holdfast:///r", "holdfast://a:1", "holdfast://a:1/r?min_workers=x"])
def test_a_url_that_does_not_say_it_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="min_workers"):
        parse_init_method(url, 1)
