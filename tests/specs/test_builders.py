"""Mounts are read from the words of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.specs import BindMount, DeviceMount, VolumeMount, parse_mounts


@pytest.mark.parametrize(
    ("words", "mounts"),
    [
        ("", []),
        ("type=bind,src=/a,dst=/b", [BindMount("/a", "/b", read_only=False)]),
        ("type=bind,source=/a,target=/b,readonly", [BindMount("/a", "/b", read_only=True)]),
        ("type=bind,src=/a,destination=/b,read_only", [BindMount("/a", "/b", read_only=True)]),
        ("type=bind,src=/a,dst=/b,readonly=true", [BindMount("/a", "/b", read_only=True)]),
        ("type=bind,src=/a,dst=/b,readonly=false", [BindMount("/a", "/b", read_only=False)]),
        ("type=bind,src=a=b,dst=/b", [BindMount("a=b", "/b")]),
        ("type=volume,src=data,dst=/b,readonly", [VolumeMount("data", "/b", read_only=True)]),
        ("type=device,src=/dev/fuse", [DeviceMount("/dev/fuse", "/dev/fuse", "rwm")]),
        ("type=device,src=/dev/a,dst=/dev/b,perm=rw", [DeviceMount("/dev/a", "/dev/b", "rw")]),
        (
            "type=bind,src=/a,dst=/b,readonly,type=volume,src=v,dst=/c,type=device,src=/dev/d",
            [BindMount("/a", "/b", read_only=True), VolumeMount("v", "/c"), DeviceMount("/dev/d", "/dev/d")],
        ),
    ],
)
def test_each_mount_begins_at_its_type(words: str, mounts: list[object]) -> None:
    assert parse_mounts(words.split(",") if words else []) == mounts


def test_the_home_of_a_bind_source_is_the_senders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert parse_mounts(["type=bind", "src=~/data", "dst=~/x"]) == [BindMount(f"{tmp_path}/data", "~/x")]
    assert parse_mounts(["type=volume", "src=~v", "dst=/x"]) == [VolumeMount("~v", "/x")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("src=/a,type=bind", "'src=/a' belongs to no mount: each mount begins with type=bind, volume or device"),
        ("readonly", "'readonly' belongs to no mount"),
        ("type=nfs,src=/a,dst=/b", "'nfs' is not a type of mount; it must be bind, volume or device"),
        ("type=bind,from=/a", "'from=/a' is not an option of a mount; the options are: type, src"),
        ("type=bind,src", "'src' of a mount needs a value: write src=..."),
        ("type=bind,dst=/b", "a mount of type=bind needs src=..."),
        ("type=bind,src=/a", "a mount of type=bind needs dst=..."),
        ("type=bind,src=/a,dst=", "a mount of type=bind needs dst=..."),
        ("type=device,dst=/b", "a mount of type=device needs src=..."),
        ("type=bind,src=/a,source=/c,dst=/b", "a mount has 'source' twice"),
        ("type=bind,src=/a,dst=/b,perm=r", "a mount of type=bind takes no 'perm'"),
        ("type=device,src=/a,readonly", "a mount of type=device takes no 'readonly'"),
        ("type=device,src=/a,perm=x", "perm=x of the device /a must be made of r, w and m"),
        ("type=bind,src=/a,dst=/b,readonly=maybe", "readonly=maybe of a mount is neither true nor false"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_write(words: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_mounts(words.split(","))

    assert why in str(caught.value)
