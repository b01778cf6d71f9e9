"""What the health server shows carries no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.health.redact import HIDDEN, redact


@pytest.mark.parametrize(
    "key",
    [
        "secret",
        "rdzv_secret",
        "SECRET",
        "Authorization",
        "hf-token",
        "accessToken",
        "tokens",
        "db.password",
        "apiKey",
        "API_KEY",
        "private-key",
        "AWS_SECRET_ACCESS_KEY",
        "AWSSecretAccessKey",
        "credentials",
    ],
)
def test_the_name_of_a_key_hides_its_value(key: str) -> None:
    assert redact({"outer": [{key: "s3cr3t"}]}) == {"outer": [{key: HIDDEN}]}


@pytest.mark.parametrize("key", ["round", "tokens_per_second", "secretary", "keys", "author", "restarts_left"])
def test_other_keys_stay_as_they_are(key: str) -> None:
    assert redact({key: 3}) == {key: 3}


@pytest.mark.parametrize("key", ["env", "environ", "Environment"])
def test_environments_are_left_out(key: str) -> None:
    assert redact({key: {"HOME": "/root"}, "round": 1}) == {"round": 1}


def test_a_password_inside_a_url_is_hidden() -> None:
    assert redact({"proxy": "http://me:pw@host:80/x"}) == {"proxy": f"http://{HIDDEN}@host:80/x"}


def test_what_is_not_json_becomes_text() -> None:
    found = redact({1: Path("/logs"), "worst": float("inf"), "ranks": (0, 1), "bytes": b"x"})

    assert found == {"1": "/logs", "worst": "inf", "ranks": [0, 1], "bytes": "b'x'"}


def test_a_structure_that_holds_itself_comes_to_an_end() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop

    assert "too deep" in json.dumps(redact(loop))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=20,
    )
)
def test_whatever_goes_in_comes_out_as_json(value: object) -> None:
    json.dumps(redact(value), allow_nan=False)
