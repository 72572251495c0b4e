"""The rules of lent tensors, checked in the program: what is lent mutable is not used, what is lent is not written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monarch_hpc.tensor.ops.infer import tensors_in
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.sites import Site, line_of, site_here

__all__ = ["Loan", "TensorMemory", "check_operation", "check_use", "memory_of", "share"]


class Loan:
    """A tensor that is lent to another stream.

    Args:
        stream: name of the stream.
        is_mutable: whether the stream may write to it.
        site: the line that lends it.

    Attributes:
        dropped: the line that gives it back; None until then.
    """

    __slots__ = ("dropped", "is_mutable", "site", "stream")

    def __init__(self, stream: str, site: Site, *, is_mutable: bool) -> None:
        self.stream = stream
        self.is_mutable = is_mutable
        self.site = site
        self.dropped: Site | None = None


class TensorMemory:
    """What tensors that share memory have in common.

    Attributes:
        given: the loans of it that are not dropped.
        held: the loan by which this stream has it; None if it is its own.
    """

    __slots__ = ("given", "held")

    def __init__(self, held: Loan | None = None) -> None:
        self.given: list[Loan] = []
        self.held = held

    def check(self, *, writes: bool) -> None:
        """Check that an operation may use it.

        Raises:
            RuntimeError: it is lent, or was given back.
        """
        held = self.held
        if held is not None and held.dropped is not None:
            raise _breach(f"uses a tensor that was given back at {line_of(held.dropped)}; it was lent", held)
        if held is not None and writes and not held.is_mutable:
            raise _breach("writes to a tensor that is lent for reading: borrow it with mutable=True; it was lent", held)
        for loan in self.given:
            if loan.is_mutable:
                raise _breach("uses a tensor that is lent mutable, until its borrow is dropped; it was lent", loan)
            if writes:
                raise _breach("writes to a tensor that is lent for reading, until its borrow is dropped; lent", loan)


def _breach(what: str, loan: Loan) -> RuntimeError:
    return RuntimeError(f"{line_of(site_here(2))} {what} to {loan.stream} at {line_of(loan.site)}")


def memory_of(tensor: MeshTensor) -> TensorMemory:
    """What *tensor* has in common with those that share its memory."""
    if tensor._memory is None:
        tensor._memory = TensorMemory()
    found: TensorMemory = tensor._memory
    return found


def share(made: MeshTensor, source: MeshTensor) -> None:
    """Note that two tensors share memory."""
    made._memory = memory_of(source)


def check_use(tensor: MeshTensor | None, *, writes: bool = False) -> None:
    """Check that a tensor may be used; errors as of `TensorMemory.check`."""
    if tensor is not None and tensor._memory is not None:
        tensor._memory.check(writes=writes)


def check_operation(mutated: Iterable[tuple[int, Any]], args: Any, kwargs: Any) -> None:
    """Check the arguments of an operation, of which some are written to; errors as of `TensorMemory.check`."""
    written = {place for place, _ in mutated}
    for place, tensor in enumerate(tensors_in((args, kwargs))):
        check_use(tensor, writes=place in written)
