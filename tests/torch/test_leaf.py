"""Tensors in the layout of state."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from holdfast.checkpoint.layout import CorruptShardError, pack, unpack  # noqa: E402
from holdfast.errors import UsageError  # noqa: E402
from holdfast.torch.leaf import copy_tree, make_tensor, view_tensor  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = sorted({str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)})


def travelled(value):
    return unpack(bytearray(pack({"it": value}).to_bytes()))["it"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_kind_of_number_arrives_bit_by_bit(name: str) -> None:
    dtype = getattr(torch, name.removeprefix("torch."))
    if dtype is torch.bool:
        tensor = torch.tensor([True, False, True])
    else:
        tensor = torch.arange(192, dtype=torch.uint8).view(dtype)

    found = travelled(tensor)

    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[::2, ::3],
        torch.randn(3, 5, dtype=torch.complex64).conj(),
        torch.randn(3, 5, dtype=torch.complex64).conj().imag,
        torch.tensor(3.5),
        torch.empty(0, 7),
        torch.nn.Parameter(torch.randn(2, 3)),
        torch.randn(1).expand(5, 3),
    ],
    ids=["transposed", "strided", "conjugate", "negative", "one number", "empty", "parameter", "expanded"],
)
def test_a_tensor_of_any_shape_arrives_as_it_looks(tensor) -> None:
    assert torch.equal(travelled(tensor), tensor.detach())


def test_bytes_are_the_tensors_own_and_made_tensors_use_the_bytes() -> None:
    tensor = torch.zeros(4)
    _, _, view = view_tensor(tensor)
    tensor[0] = 1.0
    assert bytes(view[:4]) != bytes(4)

    memory = bytearray(16)
    made = make_tensor("float32", (4,), memoryview(memory))
    made[0] = 1.0
    assert memory[:4] != bytes(4)


def test_bytes_that_must_not_be_written_to_are_copied() -> None:
    made = make_tensor("float32", (4,), memoryview(bytes(16)))

    made += 1.0

    assert made.tolist() == [1.0] * 4


def test_what_has_no_plain_bytes_is_refused_when_it_is_written() -> None:
    for tensor in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(UsageError, match="dense"):
            pack([tensor])


def test_a_type_that_torch_does_not_know_is_torn() -> None:
    with pytest.raises(CorruptShardError, match="float3"):
        make_tensor("float3", (1,), memoryview(bytes(4)))


def test_a_copy_of_a_tree_shares_nothing_with_it() -> None:
    tree = {"a": [torch.zeros(2), (torch.ones(2), "text")], 3: None}
    copied = copy_tree(tree)
    tree["a"][0] += 5

    assert copied["a"][0].tolist() == [0.0, 0.0]
    assert copied["a"][1][1] == "text"
    assert copied[3] is None
