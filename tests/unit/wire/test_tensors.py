"""Torch tensors survive serialization with their aliases and views, and their memory is not copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from monarch_hpc.wire.serializer import dumps, loads

_MIB = 1 << 20

torch: Any = None


@pytest.fixture(scope="module", autouse=True)
def needs_torch() -> None:
    """Import torch, or skip the tests; processes that only collect them need not wait two seconds for it."""
    global torch
    torch = pytest.importorskip("torch")


def travel(value: object) -> tuple[Any, int]:
    """Serialize *value*, move its buffers, and return what is read, and the bytes that travelled."""
    body, buffers = dumps(value)
    moved = [bytearray(buffer) for buffer in buffers]
    return loads(body, moved), len(body) + sum(map(len, moved))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3),
        lambda: torch.arange(_MIB, dtype=torch.int64),
        lambda: torch.ones(_MIB, dtype=torch.bfloat16)[3::7],
        lambda: torch.arange(_MIB).reshape(1024, 1024).t(),
        lambda: torch.zeros(0, 5),
        lambda: torch.tensor(3.5),
        lambda: torch.ones(3, dtype=torch.bool).expand(1000, 3),
        lambda: torch.ones(_MIB, dtype=torch.complex64).conj(),
        lambda: torch.tensor(3.5).expand(1000, 1000),
        lambda: torch.arange(9000).as_strided((100, 50), (1, 1), 7),
        lambda: torch.ones(3, 0, 5),
        lambda: torch.ones(9000).to(torch.float8_e4m3fn).view(torch.uint8)[1:8000],
        lambda: torch.ones(10_000).to_sparse(),
        lambda: torch.ones(2000, requires_grad=True),
        lambda: torch.arange(_MIB)[5000:5000],
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
        "expanded scalar",
        "overlapping",
        "no columns",
        "odd offset",
        "sparse",
        "with gradient",
        "nothing of much",
    ],
)
def test_tensors_survive(make: Callable[[], Any]) -> None:
    tensor = make()
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


def test_attributes_travel_even_if_they_hold_the_tensor() -> None:
    whole = torch.zeros(_MIB)
    parameter = torch.nn.Parameter(torch.ones(10))
    for tensor in (whole, parameter):
        tensor.note, tensor.me = "mine", tensor
    read, num_bytes = travel([whole, whole[3:5], parameter])
    assert num_bytes < whole.nbytes + 4000
    assert all(tensor.note == "mine" and tensor.me is tensor for tensor in (read[0], read[2]))
    assert isinstance(read[2], torch.nn.Parameter)
    read[0][3] = 1.0
    assert read[1][0] == 1.0


def test_a_subclass_shares_the_memory_of_other_tensors() -> None:
    class Marked(torch.Tensor):  # type: ignore[misc]
        pass

    whole = torch.zeros(_MIB)
    body, buffers = dumps([whole.as_subclass(Marked), whole])
    assert len(body) < 4000 and sum(map(len, buffers)) < whole.nbytes + 4000
    read: Any = loads(body, [bytearray(buffer) for buffer in buffers])
    assert type(read[0]).__name__ == "Marked"
    read[1][3] = 1.0
    assert read[0][3] == 1.0


def test_views_of_complex_numbers_carry_only_what_is_seen() -> None:
    whole = torch.complex(torch.arange(float(_MIB)), torch.ones(_MIB))
    views = [whole.conj()[5:10], whole.conj().imag[5:10], whole.imag[7:9]]
    read, num_bytes = travel(views)
    assert num_bytes < 4000
    assert [(one.is_conj(), one.is_neg()) for one in read] == [(True, False), (False, True), (False, False)]
    assert all(torch.equal(one, other) for one, other in zip(read, views, strict=True))
    read[2][0] = 8.0
    assert read[0][2].imag == -8.0 and read[1][2] == -8.0


def test_sparse_and_conjugate_tensors_still_want_gradients() -> None:
    for tensor in (torch.eye(5).to_sparse(), torch.ones(5, dtype=torch.complex64).conj()):
        read, _ = travel(tensor.requires_grad_())
        assert (
            read.requires_grad and read.is_leaf and (read.layout, read.is_conj()) == (tensor.layout, tensor.is_conj())
        )


def test_a_storage_travels() -> None:
    tensor = torch.arange(float(_MIB))
    read, num_bytes = travel([tensor.untyped_storage(), tensor[3:9]])
    assert read[0].nbytes() == tensor.nbytes and num_bytes < tensor.nbytes + 4000
    read[1][0] = -1.0
    assert torch.empty(0).set_(read[0])[3] == -1.0


def test_a_tensor_whose_memory_was_released_is_an_error() -> None:
    tensor = torch.ones(5000)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"shape \(5000,\) needs 20000 bytes of its storage, which was resized to 0"):
        dumps([tensor])


def test_more_tensors_than_a_frame_has_room_for() -> None:
    """And still only the elements that are seen, with their aliases."""
    value = [torch.full((2000,), number, dtype=torch.int32) for number in range(1500)]
    value += [whole[1000:1001] for whole in (torch.arange(100_000) for _ in range(100))]
    value.append(value[1499][3:5])
    read, num_bytes = travel(value)
    assert all(torch.equal(one, other) for one, other in zip(read, value, strict=True))
    assert num_bytes < 1500 * 8000 + (1 << 20)
    read[1499][3] = -1
    assert read[-1][0] == -1


def test_pickling_elsewhere_is_unchanged() -> None:
    """The reducers are not in `copyreg`, where users' own pickles would meet them."""
    tensor = torch.ones(10_000)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    assert torch.equal(copy.deepcopy(tensor), tensor)


def test_containers_that_hold_themselves_keep_their_tensors() -> None:
    weight = torch.arange(_MIB)
    circle: list[Any] = [weight, {"row": weight[10:20]}]
    circle.append(circle)
    read, num_bytes = travel(circle)
    assert read[2] is read and torch.equal(read[0], weight) and num_bytes < weight.nbytes + 4000
    read[0][10] = -1
    assert read[1]["row"][0] == -1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, 4, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(2000), 0.1, 0, torch.qint8),
        lambda: torch.eye(100).to_sparse_csr(),
        lambda: torch.ones(2000, requires_grad=True) * 2,
        lambda: torch.nn.UninitializedParameter(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["meta", "quantized", "sparse rows", "result with gradient", "uninitialized", "nested"],
)
@pytest.mark.filterwarnings("ignore")  # torch calls some of them a beta, or deprecated
def test_other_tensors_are_left_to_torch_or_refused_by_it(make: Callable[[], Any]) -> None:
    tensor = make()
    try:
        pickle.dumps(tensor)
    except Exception as refused:  # noqa: BLE001 whatever torch raises, a user of ours sees the same
        with pytest.raises(type(refused)):
            dumps(tensor)
        return
    read, _ = travel([tensor])
    assert type(read[0]) is type(tensor) and (read[0].device, read[0].layout) == (tensor.device, tensor.layout)
    uninitialized = isinstance(tensor, torch.nn.UninitializedParameter)
    if tensor.device.type != "meta" and not tensor.is_nested and not uninitialized:
        both = [one if one.layout is torch.strided else one.to_dense() for one in (read[0], tensor)]
        assert torch.equal(*both)
