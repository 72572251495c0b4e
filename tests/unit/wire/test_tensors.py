"""Torch tensors survive serialization with their aliases and views, and their memory is not copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from monarch_hpc.wire.serializer import dumps, loads  # noqa: E402 torch first, if there is one

_MIB = 1 << 20


def travel(value: object) -> tuple[Any, int]:
    """Serialize *value*, move its buffers, and return what is read, and the bytes that travelled."""
    body, buffers = dumps(value)
    moved = [bytearray(buffer) for buffer in buffers]
    return loads(body, moved), len(body) + sum(map(len, moved))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(_MIB, dtype=torch.int64),
        torch.ones(_MIB, dtype=torch.bfloat16)[3::7],
        torch.arange(_MIB).reshape(1024, 1024).t(),
        torch.zeros(0, 5),
        torch.tensor(3.5),
        torch.ones(3, dtype=torch.bool).expand(1000, 3),
        torch.ones(_MIB, dtype=torch.complex64).conj(),
        torch.ones(10_000).to_sparse(),
        torch.ones(2000, requires_grad=True),
        torch.arange(_MIB)[5000:5000],
    ],
    ids=[
        "matrix",
        "large",
        "strided",
        "transposed",
        "nothing",
        "scalar",
        "expanded",
        "conjugate",
        "sparse",
        "with gradient",
        "nothing of much",
    ],
)
def test_tensors_survive(tensor: Any) -> None:
    read, _ = travel(tensor)
    assert read.dtype == tensor.dtype and read.shape == tensor.shape and read.requires_grad == tensor.requires_grad
    assert torch.equal(read.to_dense(), tensor.to_dense()) if tensor.is_sparse else torch.equal(read, tensor)


def test_a_large_tensor_is_not_copied() -> None:
    tensor = torch.zeros(_MIB)
    body, buffers = dumps({"a": tensor})
    assert len(body) < 1000
    tensor[7] = 9.0
    assert any(bytes(buffer) == tensor.numpy().tobytes() for buffer in buffers)
    arrived = [bytearray(buffer) for buffer in buffers]
    read: Any = loads(body, arrived)
    read["a"][8] = 5.0
    assert any(torch.frombuffer(part, dtype=torch.float32)[8] == 5.0 for part in arrived if len(part) > _MIB)


def test_aliases_stay_aliases() -> None:
    weight = torch.zeros(1024, 1024)
    read, num_bytes = travel([weight, {"tied": weight}, weight[3], weight.t(), weight.view(-1)])
    assert num_bytes < weight.nbytes + 4000
    read[0][3, 4] = 1.0
    assert read[1]["tied"] is read[0]
    assert (read[2][4], read[3][4, 3], read[4][3 * 1024 + 4]) == (1.0, 1.0, 1.0)


def test_what_no_tensor_sees_stays_at_home() -> None:
    table = torch.arange(_MIB, dtype=torch.int32).reshape(1024, 1024)
    read, num_bytes = travel([table[500], table[510, 7:]])
    assert num_bytes < 12 * 4096
    assert torch.equal(read[0], table[500]) and torch.equal(read[1], table[510, 7:])
    read[0][0] = -1
    assert table[500, 0] == 500 * 1024


def test_small_tensors_that_share_memory_still_do() -> None:
    row = torch.zeros(8)
    read, num_bytes = travel((row, row[2:]))
    assert num_bytes < 1000
    read[0][3] = 4.0
    assert read[1][1] == 4.0


def test_a_module_survives_with_tied_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    read, _ = travel(model)
    assert read[1].weight is read[0].weight and isinstance(read[0].weight, torch.nn.Parameter)
    assert (read[0].weight.requires_grad, read[0].bias.requires_grad) == (True, False)
    values = torch.ones(2, 64)
    assert torch.equal(read(values), model(values))


def test_attributes_and_subclasses_are_left_to_torch() -> None:
    class Marked(torch.Tensor):  # type: ignore[misc]
        pass

    marked = torch.ones(5).as_subclass(Marked)
    named = torch.ones(5)
    named.note = "mine"
    read, _ = travel((marked, named))
    assert type(read[0]).__name__ == "Marked" and read[1].note == "mine"


def test_more_tensors_than_a_frame_has_room_for() -> None:
    value = [torch.full((2000,), number, dtype=torch.int32) for number in range(1500)]
    read, _ = travel(value)
    assert all(torch.equal(one, other) for one, other in zip(read, value, strict=True))


def test_pickling_elsewhere_is_unchanged() -> None:
    """The reducers are not in `copyreg`, where users' own pickles would meet them."""
    tensor = torch.ones(10_000)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    assert torch.equal(copy.deepcopy(tensor), tensor)
