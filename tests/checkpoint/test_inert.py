"""Pickles as inert data: whatever a pickle asks for, nothing of it happens."""

from __future__ import annotations

import collections
import copyreg
import functools
import operator
import os
import pickle
import pickletools
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import inert
from holdfast.checkpoint.inert import Built, Named, Pairs, RefusedPickleError

ALLOWED = [Named("torch.distributed.checkpoint.metadata", "Metadata"), Named("torch", "Size"), Named("a", "b")]


@dataclass
class Sample:
    """A dataclass as torch's are."""

    name: str
    sizes: list[int] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


HERE = Named(__name__, "Sample")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_dataclass_becomes_its_name_and_its_fields(protocol: int) -> None:
    data = pickle.dumps(Sample("w", [1, -2, 300, 1 << 40], {"x": (1.5, None, True, "é")}), protocol)

    found = inert.read(data, [HERE, Named("copy_reg", "_reconstructor"), Named("__builtin__", "object")])

    assert isinstance(found, Built)
    assert found.kind == HERE
    fields = dict(found.state.items)
    assert fields["name"] == "w"
    assert fields["sizes"] == [1, -2, 300, 1 << 40]
    assert fields["more"].items == [("x", (1.5, None, True, "é"))]


class Runs:
    """Pickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def calls(canary: Path) -> list[Any]:
    command = f"touch {canary}"
    return [
        Runs(os.system, command),
        Runs(getattr, Sample, "__init__"),
        Runs(functools.partial, os.system, command),
        Runs(operator.attrgetter("touch"), canary),
        Runs(operator.methodcaller("touch"), canary),
        Runs(Sample, "x"),
        Runs(copyreg._reconstructor, Sample, object, None),  # type: ignore[attr-defined]
        Runs(eval, f"__import__('os').system({command!r})"),
        Runs(exec, f"__import__('os').system({command!r})"),
        Runs(__import__, "antigravity"),
        Runs(Path.touch, canary),
        collections.Counter("x"),
    ]


@pytest.mark.parametrize("which", range(12))
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_call_is_refused_and_not_made(tmp_path: Path, which: int, protocol: int) -> None:
    data = pickle.dumps(calls(tmp_path / "ran")[which], protocol)

    with pytest.raises(RefusedPickleError, match="which no checkpoint needs"):
        inert.read(data, ALLOWED)
    assert not (tmp_path / "ran").exists()


def name(module: str, dotted: str) -> bytes:
    """Name something as protocol 4 does, which looks dotted names up attribute by attribute."""
    texts = [text.encode("utf-8", "surrogatepass") for text in (module, dotted)]
    return b"".join(b"\x8c" + bytes([len(text)]) + text for text in texts) + b"\x93"


@pytest.mark.parametrize(
    ("module", "dotted"),
    [
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__"),
        ("torch.distributed.checkpoint.metadata", "torch.os.system"),
        ("torch", "Size.__class__"),
        ("torch.Size", ""),
        ("", ""),
        ("\udc80", "x"),
    ],
)
def test_a_dotted_name_is_refused(tmp_path: Path, module: str, dotted: str) -> None:
    named = name(module, dotted)
    argument = f"touch {tmp_path / 'ran'}".encode()
    data = b"\x80\x04" + named + b"X" + struct.pack("<I", len(argument)) + argument + b"\x85R."

    with pytest.raises(RefusedPickleError, match="which no checkpoint needs"):
        inert.read(data, ALLOWED)
    assert not (tmp_path / "ran").exists()


def test_state_set_on_a_class_or_a_list_is_refused() -> None:
    for target in (name("a", "b"), b"]", b"}", b"N", b"\x8c\x01x"):
        with pytest.raises(RefusedPickleError, match="no built"):
            inert.read(b"\x80\x04" + target + b"}\x8c\x08__init__NsN\x86b.", ALLOWED)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x82\x01.",  # EXT1: a class by its number in copyreg
        b"\x80\x04\x83\x01\x00.",
        b"\x80\x04\x84\x01\x00\x00\x00.",
        b"\x80\x04(ia\nb\n.",  # INST
        b"\x80\x04(" + name("a", "b") + b"o.",  # OBJ
        b"Pid\n.",  # PERSID
        b"\x80\x04NQ.",  # BINPERSID
        b"\x80\x05\x97.",  # NEXT_BUFFER
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # LONG4
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # BYTEARRAY8
        b"\x80\x04" + name("a", "b") + b")}\x92.",  # NEWOBJ_EX
        b"\x80\x04\x8f.",  # EMPTY_SET
    ],
)
def test_opcodes_that_dataclasses_do_not_need_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedPickleError):
        inert.read(data, ALLOWED)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x09N.",
        b"\x80\x04.",
        b"\x80\x04NN.",
        b"\x80\x04(.",
        b"\x80\x04(N.",
        b"\x80\x04h\x05.",
        b"\x80\x04(a.",
        b"\x80\x04]a.",
        b"\x80\x04}(Nu.",
        b"\x80\x04}(NNNu.",
        b"\x80\x04t.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04B\xff\xff\xff\xffabc.",  # says that four gigabytes follow
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x80\x04X\xff\xff\xff\xffabc.",
        b"ca\n",
    ],
)
def test_a_damaged_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedPickleError):
        inert.read(data, ALLOWED)


def test_a_reference_far_away_costs_no_memory() -> None:
    assert inert.read(b"\x80\x04Nr\xff\xff\xff\x7f.", ALLOWED) is None


DEPTH = 200_000


@pytest.mark.parametrize("deep", [b"N" + b"\x85" * DEPTH, b"]" * DEPTH + b"a" * (DEPTH - 1)], ids=["tuples", "lists"])
def test_deep_nesting_ends_neither_the_process_nor_the_reading(deep: bytes) -> None:
    """As the key of a dict, a tuple this deep would overflow the C stack when it is hashed."""
    found = inert.read(b"\x80\x04}" + deep + b"Ns.", ALLOWED)

    assert isinstance(found, Pairs)


def test_lists_that_hold_each_other_many_times_are_not_unfolded() -> None:
    bomb = (
        b"\x80\x04]\x94"
        + b"".join(b"]\x94(" + b"h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(200))
        + b"N."
    )

    with pytest.raises(RefusedPickleError, match="one value"):
        inert.read(bomb, ALLOWED)


OPCODES = [code.code.encode("latin-1") for code in pickletools.opcodes]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(OPCODES), st.binary(max_size=6), st.sampled_from([name("a", "b"), name("os", "system")])
        ),
        max_size=60,
    )
)
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    try:
        inert.read(b"\x80\x04" + b"".join(pieces) + b".", ALLOWED)
    except RefusedPickleError:
        pass
