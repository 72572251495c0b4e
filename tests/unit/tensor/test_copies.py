"""Copies of values on their way to the program are equal, and are copies."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode

from monarch_hpc.tensor.stream.copies import copy_value, rebuild
from monarch_hpc.tensor.stream.records import DTYPES
from monarch_hpc.wire.serializer import MIN_BUFFER_BYTES

_TYPES = [getattr(torch, name) for name in DTYPES]


def _sent(value: Any) -> Any:
    copied: Any = pickle.loads(pickle.dumps(copy_value(value)))
    return rebuild(copied)


@pytest.mark.parametrize("dtype", _TYPES, ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (0, 3), (2, 3, 4)], ids=str)
def test_each_type_and_shape_arrives_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    given = (torch.arange(size) % 2).to(torch.uint8).view(-1)
    value = given.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    found = _sent(value)
    assert found.dtype is dtype and found.shape == value.shape
    assert not size or torch.equal(found.reshape(-1).view(torch.uint8), given)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.arange(3.0).expand(2, 3),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.arange(4.0).to_sparse(),
        torch.nn.Parameter(torch.arange(3.0)),
        torch.ones(MIN_BUFFER_BYTES),
        torch.arange(12.0)[4:8],
    ],
    ids=["strides", "steps", "expanded", "conjugate", "negative", "sparse", "parameter", "large", "window"],
)
def test_unusual_tensors_arrive_as_they_are(value: torch.Tensor) -> None:
    found = _sent(value)
    assert type(found) is torch.Tensor and not found.requires_grad and found.layout is value.layout
    assert torch.equal(found.to_dense(), value.to_dense())


def test_what_is_done_later_is_not_in_a_copy() -> None:
    for value in (torch.zeros(3), torch.zeros(3, 2).t(), torch.zeros(MIN_BUFFER_BYTES)):
        copied = copy_value(value)
        value += 1
        assert not rebuild(copied).any()


def test_a_rebuilt_tensor_can_be_written_to_and_needs_no_mesh() -> None:
    class _Refused(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(function)

    copied = copy_value(torch.arange(3.0))
    with _Refused():
        found = rebuild(copied)
    found += 1
    assert found.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("value", [None, 3, "text", {"a": [1, 2]}, (0, (1,), b"data")])
def test_other_values_are_themselves(value: object) -> None:
    assert _sent(value) == value


@pytest.mark.parametrize("num", [3, 100_000])
def test_a_tensor_whose_memory_was_released_is_an_error(num: int) -> None:
    """A large one, which torch copies, ended the process by SIGSEGV."""
    value = torch.ones(num)
    value.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"needs {4 * num} bytes of its storage, which was resized to 0"):
        copy_value(value)
