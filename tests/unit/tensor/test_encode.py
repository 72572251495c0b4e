"""Operations become templates and integers, and the templates run as the operations do; all in this process."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.tensor.ops.encode import KeyBuilder, LocalTensor, render, template_key
from monarch_hpc.tensor.ops.factories import FACTORIES, from_values
from monarch_hpc.tensor.ops.infer import infer
from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.records import bits_of, float_of
from monarch_hpc.tensor.worker.template import Template
from monarch_hpc.tensor.worker.values import Dependent, Failure, Values

TRANSPOSED: Any = torch._C.TensorBase.__dict__["T"].__get__
CPU = torch.device("cpu")


class Ranks(NamedTuple):
    """Stands for the ranks of a mesh."""

    dead: deque[int]
    name: str = "two procs"
    region: Region = Region.whole(Extent(("dp",), (2,)))
    operations: Any = None
    mesh: int = 0
    engine: Any = None


VIEW = Ranks(deque())


def proxy(number: int, *shape: int, grads: bool = False, view: Ranks = VIEW) -> MeshTensor:
    meta = Meta.of(torch.empty(shape, device="meta"), CPU, grads=grads)
    return MeshTensor.make(number, view, meta)


def executed(function: Any, args: tuple[Any, ...], values: dict[int, Any]) -> Any:
    """Encode a call, run its template on *values*, and return the first result."""
    builder = KeyBuilder([], [], [], None)
    for arg in args:
        builder.add(arg)
    inference = infer(function, args, {})
    spec = render(
        function,
        args,
        {},
        mutated=tuple(place for place, _ in inference.mutated),
        num_outs=len(inference.outs),
        is_tree=inference.kind == "tree",
        grad=False,
        autocast=(),
    )
    template, held = Template(spec), Values()
    held.update(values)
    template.run(held, [16, *builder.ints, 100], 0)
    assert template.size == 1 + len(builder.ints) + bool(inference.outs)
    return held.get(100)


def test_a_template_does_what_the_operation_does() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    values = {1: a, 2: b}
    x, y = proxy(1, 2, 3), proxy(2, 2, 3)
    calls: list[tuple[Any, tuple[Any, ...], Any]] = [
        (torch.add, (x, y), a + b),
        (torch.Tensor.mul, (x, 2.5), a * 2.5),
        (torch.Tensor.__getitem__, (x, (slice(None), 1)), a[:, 1]),
        (torch.Tensor.__getitem__, (x, (slice(0, 2, 1), slice(1, None))), a[0:2:1, 1:]),
        (torch.cat, ([x, y], 1), torch.cat([a, b], 1)),
        (TRANSPOSED, (x,), a.T),
        (torch.nn.functional.gelu, (x,), torch.nn.functional.gelu(a)),
        (torch.Tensor.to, (x, torch.float64), a.double()),
        (torch.Tensor.view, (x, 3, -1), a.view(3, -1)),
        (torch.ops.aten.add.Tensor, (x, y), a + b),
        (torch.Tensor.split, (x, 1), a[:1]),
    ]
    for function, args, expected in calls:
        assert torch.equal(executed(function, args, values), expected), function


def test_an_index_or_a_step_size_needs_no_new_template() -> None:
    x = proxy(1, 4, 4)
    keys = set()
    for index, factor in ((0, 1.5), (3, 2.5)):
        for function, args in ((torch.Tensor.__getitem__, (x, index)), (torch.mul, (x, factor))):
            spec = render(function, args, {}, mutated=(), num_outs=1, is_tree=False, grad=True, autocast=())
            keys.add(template_key(spec, function))
    assert len(keys) == 2
    for flag in (True, False):
        spec = render(torch.sum, (x, 0, flag), {}, mutated=(), num_outs=1, is_tree=False, grad=True, autocast=())
        keys.add(template_key(spec, torch.sum))
    assert len(keys) == 4


def test_equal_numbers_of_other_types_have_other_keys() -> None:
    keys = set()
    for value in (1, 1.0, True, "1", (1,), [1], slice(1), {"a": 1}, None):
        builder = KeyBuilder([], [], [], None)
        builder.add(value)
        keys.add(tuple(builder.key))
    assert len(keys) == 9


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    builder = KeyBuilder([], [], [], None)
    with pytest.raises(LocalTensor):
        builder.add([torch.ones(1)])
    with pytest.raises(TypeError, match=r"tensor\.random"):
        builder.add(torch.Generator())
    with pytest.raises(TypeError, match="bytearray"):
        builder.add(bytearray(b"x"))
    with pytest.raises(OverflowError, match="64 bits"):
        render(torch.add, (1 << 63,), {}, mutated=(), num_outs=1, is_tree=False, grad=True, autocast=())
    builder.add(proxy(1, 2))
    with pytest.raises(ValueError, match="different ranks"):
        builder.add(proxy(2, 2, view=Ranks(deque(), "others")))


def test_inference_tells_results_writes_and_aliases() -> None:
    x, weight = proxy(1, 2, 3), proxy(2, 3, 3, grads=True)
    made = infer(torch.matmul, (x, weight), {})
    assert (made.kind, tuple(made.outs[0].shape), made.outs[0].grads, made.outs[0].leaf) == ("one", (2, 3), True, False)
    assert infer(torch.Tensor.view, (x, 6), {}).alias == 0
    written = infer(torch.Tensor.add_, (x, 1), {})
    assert (written.kind, written.value, [place for place, _ in written.mutated]) == ("self", 0, [0])
    assert infer(torch.Tensor.__setitem__, (x, 0, 1.0), {}).kind == "none"
    assert infer(torch.is_complex, (x,), {}).value is False
    transposed = infer(torch.Tensor.t_, (x,), {})
    assert tuple(transposed.mutated[0][1].shape) == (3, 2)
    pieces = infer(torch.Tensor.split, (x, 1), {})
    assert pieces.kind == "tree" and len(pieces.outs) == 2
    with pytest.raises(NotImplementedError, match="propagate"):
        infer(torch.nonzero, (x,), {})
    with pytest.raises(RuntimeError, match="same reduction dim"):
        infer(torch.matmul, (x, x), {})


def test_descriptions_are_interned_and_forgotten() -> None:
    first, again = proxy(1, 7, 7)._m, proxy(2, 7, 7)._m
    assert first is again
    num = len(Meta._interned)
    for size in range(100, 200):
        proxy(1, size)
    assert len(Meta._interned) <= num + 1


def test_factories_of_values_run_here() -> None:
    assert FACTORIES[torch.zeros] is None
    assert torch.equal(from_values(torch.tensor, ([1, 2],), {}), torch.tensor([1, 2]))


@pytest.mark.parametrize("number", [0.0, -0.0, 1.5, float("inf"), 1e-300])
def test_floats_keep_their_bits(number: float) -> None:
    assert bits_of(float_of(bits_of(number))) == bits_of(number)


def test_a_failure_spoils_what_shares_memory_and_nothing_else() -> None:
    values = Values()
    base = torch.zeros(4)
    values.update({1: base, 2: base[1:], 3: torch.zeros(1)})
    values.fail(7, [4], [1])
    assert [type(values[number]) is Failure for number in (1, 2, 3, 4)] == [True, True, False, True]
    with pytest.raises(Dependent) as caught:
        values.check([3, 2])
    assert caught.value.root == 7
    values.free([1, 2, 4])
    assert values.num_failed == 0 and 3 in values
