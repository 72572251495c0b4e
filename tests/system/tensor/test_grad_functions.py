"""Functions with a backward of their own, and gradients one by one, on two procs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import ProcMesh
from monarch_hpc.tensor import fetch_shard, grad_function, grad_generator, inspect

_GET_S = 60.0


def both(tensor: Any) -> list[Any]:
    """The values of both ranks."""
    return [fetch_shard(tensor, dp=rank).get(_GET_S) for rank in range(2)]


@grad_function
def summed(x: Any) -> Any:
    """The sum over ranks, whose gradient is summed over ranks, too."""
    return x.reduce("dp", "sum"), lambda gradient: gradient.reduce("dp", "sum")


@grad_function
def scaled_pair(x: Any, factor: float, y: Any) -> Any:
    """Two results, whose gradients are told apart."""

    def backward(of_product: Any, of_sum: Any, of_number: None) -> Any:
        assert of_number is None
        return of_product * factor + of_sum, None, of_sum * torch.full((), 10.0)

    return [x * factor, (x + y, (x > 0).long())], backward


def test_a_function_of_the_program_has_its_own_backward(procs: ProcMesh) -> None:
    with procs.activate():
        place = procs.rank("dp")
        x = torch.ones(3, requires_grad=True)
        loss = (summed(x * (place + 1)) * (place + 1)).sum()
        loss.backward()
        assert x.grad is not None
        y = torch.ones(2, requires_grad=True)
        z = torch.ones(2, requires_grad=True)
        product, _ = scaled_pair(y * 3, 2.0, z)
        product.sum().backward()
        first: tuple[Any, Any] = (y.grad, z.grad)
        _, (total, _) = scaled_pair(y, 2.0, z)
        total += 1  # a result may be written to
        total.sum().backward()
    # Rank r: d loss / d sum is r + 1 on each rank, their sum is 3, times r + 1.
    assert [value.tolist() for value in both(x.grad)] == [[3.0] * 3, [6.0] * 3]
    assert inspect(first[0]).tolist() == [6.0 + 1.0] * 2  # the same memory as y.grad
    assert inspect(y.grad).tolist() == [7.0, 7.0] and inspect(z.grad).tolist() == [10.0, 10.0]
    with torch.no_grad():
        assert not summed(x).requires_grad


def test_it_takes_tensors_of_the_program_and_refuses_a_mixture(procs: ProcMesh) -> None:
    @grad_function
    def double(x: Any, y: Any) -> Any:
        return x * 2 + y, lambda gradient: (gradient * 5, None)

    x = torch.ones(2, requires_grad=True)
    double(x, torch.ones(2)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0, 5.0]
    with procs.activate():
        y = torch.ones(2, requires_grad=True)
        with pytest.raises(TypeError, match="put it on the mesh"):
            double(x, y)
        with pytest.raises(RuntimeError, match="returned 1 gradients for 2"):
            grad_function(lambda a, b: (a + b, lambda gradient: (gradient,)))(y, 1.0).sum().backward()


def test_it_takes_part_in_passes_through_copies(procs: ProcMesh) -> None:
    first, second = procs.slice(dp=0), procs.slice(dp=1)

    @grad_function
    def carried(x: Any) -> Any:
        return x.to_mesh(second), lambda gradient: gradient.to_mesh(first) * 100

    with first.activate():
        x: Any = torch.full((2,), 3.0, requires_grad=True)
        y = x * x
        loss = carried(y).sum() * 2 + (y * 10).to_mesh(second).sum()
        loss.backward()
    assert inspect(x.grad).tolist() == [6.0 * (200 + 10)] * 2


def test_gradients_come_one_by_one(procs: ProcMesh) -> None:
    with procs.activate():
        place = procs.rank("dp") + 1.0
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        x = torch.ones(5, 3) * place
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        params = list(model.parameters())
        expected = [inspect(param.grad) for param in params]
        found = []
        for gradient in grad_generator(loss, list(reversed(params))):
            found.append(inspect(gradient))
            gradient.reduce_("dp", "sum")  # which is not that of the parameter
        assert all(torch.equal(one, two) for one, two in zip(reversed(found), expected, strict=True))
        assert all(torch.equal(inspect(param.grad), one) for param, one in zip(params, expected, strict=True))
        assert list(grad_generator(summed(params[1]).sum(), [])) == []


def test_they_come_through_functions_of_the_program_and_leave_grads_alone(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(2, requires_grad=True)
        y = torch.ones(2, requires_grad=True)
        (x * 7).sum().backward()  # type: ignore[no-untyped-call]
        inner = x * y
        loss = summed(inner)
        with pytest.raises(RuntimeError, match="not a leaf"):
            list(grad_generator(loss.sum(), [inner]))
        found = list(grad_generator([loss], [y], [torch.full((2,), 3.0)]))
        assert inspect(found)[0].tolist() == [6.0, 6.0]
        assert y.grad is None
    assert inspect(x.grad).tolist() == [7.0, 7.0]
