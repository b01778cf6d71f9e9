"""Apps survive the trip to a disk and back exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount
from holdfast.specs.serialize import appdef_from_json, appdef_to_json, role_from_json, role_to_json

TEXT = st.text(max_size=8)
WORDS = st.dictionaries(TEXT, TEXT, max_size=3)
COUNTS = st.dictionaries(TEXT, st.integers(0, 64), max_size=3)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RESOURCES = st.builds(
    Resource,
    cpu=st.integers(-1, 256) | st.floats(0, 8),
    gpu=st.integers(-1, 8) | st.just(0.5),
    memMB=st.integers(-1, 2**21),
    capabilities=st.dictionaries(TEXT, JSON, max_size=2),
    devices=COUNTS,
    tags=st.dictionaries(TEXT, JSON, max_size=2),
)
MOUNTS = st.one_of(
    st.builds(BindMount, TEXT, TEXT, st.booleans()),
    st.builds(VolumeMount, TEXT, TEXT, st.booleans()),
    st.builds(DeviceMount, TEXT, TEXT, TEXT),
)
ROLES = st.builds(
    Role,
    name=TEXT,
    image=TEXT,
    min_replicas=st.none() | st.integers(1, 9),
    entrypoint=TEXT,
    args=st.lists(TEXT, max_size=3),
    env=WORDS,
    num_replicas=st.integers(1, 9),
    max_retries=st.integers(0, 9),
    retry_policy=st.sampled_from(RetryPolicy),
    resource=RESOURCES,
    port_map=COUNTS,
    metadata=st.dictionaries(TEXT, JSON, max_size=3),
    mounts=st.lists(MOUNTS, max_size=3),
    workspace=st.none() | TEXT | WORDS,
)
APPS = st.builds(AppDef, name=TEXT, roles=st.lists(ROLES, max_size=3), metadata=WORDS)


@given(APPS)
def test_an_app_comes_back_as_it_was(app: AppDef) -> None:
    assert appdef_from_json(json.loads(json.dumps(appdef_to_json(app)))) == app


def test_every_field_of_a_role_is_written() -> None:
    role = Role(name="a", image="b", mounts=[BindMount("/x", "/y")])

    data = role_to_json(role)

    assert set(data) == set(Role.__dataclass_fields__)
    assert data["mounts"] == [{"type": "bind", "src_path": "/x", "dst_path": "/y", "read_only": False}]
    assert data["retry_policy"] == "APPLICATION"


def test_later_fields_are_passed_over_and_missing_ones_have_their_defaults() -> None:
    app = appdef_from_json({"name": "a", "roles": [{"name": "r", "image": "i", "colour": "red"}], "shape": "round"})

    assert app == AppDef(name="a", roles=[Role(name="r", image="i")])


def test_what_was_read_is_not_what_was_written() -> None:
    role = Role(name="a", image="b", resource=Resource(1, 0, 1, devices={"d": 1}))

    role_from_json(role_to_json(role)).resource.devices["d"] = 2

    assert role.resource.devices == {"d": 1}


def test_a_role_of_ones_own_is_written_as_a_role() -> None:
    @dataclass
    class Mine(Role):
        extra: str = "e"

    back = role_from_json(role_to_json(Mine(name="a", image="b")))

    assert back == Role(name="a", image="b")
    assert type(back) is Role
