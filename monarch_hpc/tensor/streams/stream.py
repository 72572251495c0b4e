"""Streams of a program, and the loans between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch

from monarch_hpc.core.arguments import check_flag, check_instance, check_text
from monarch_hpc.tensor.active import on_stream
from monarch_hpc.tensor.opening import current_stream
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import LOAN, TAKE
from monarch_hpc.tensor.stream.sites import site_here
from monarch_hpc.tensor.streams.loans import Loan, TensorMemory, check_use, memory_of

__all__ = ["Borrow", "Stream", "TensorStream", "get_active_stream"]


class Borrow:
    """A tensor that is lent to a stream, until `drop`; a context manager that drops it.

    Args:
        owner: the tensor.
        borrowed: the same value in the other stream.
        loan: the loan.
    """

    def __init__(self, owner: MeshTensor, borrowed: MeshTensor, loan: Loan) -> None:
        self._owner = owner
        self._borrowed = borrowed
        self._loan = loan

    def drop(self) -> None:
        """Give the tensor back, at this point of both streams; a second call does nothing.

        What the owner's stream does with it after this waits for what the other stream did before.

        Raises:
            RuntimeError: the other stream has lent it on.
        """
        loan, owner, borrowed = self._loan, self._owner, self._borrowed
        if loan.dropped is not None:
            return
        check_use(borrowed, writes=True) if loan.is_mutable else check_use(borrowed)
        view, home = borrowed._h.view, owner._h.view
        token = view.engine.emit(view, [LOAN, borrowed._h.number, -1], 1)
        view.engine.flush()
        spoilt = owner._h.number if loan.is_mutable else 0
        home.engine.emit(home, [TAKE, signed(view.engine.key), token, 0, spoilt])
        loan.dropped = site_here(1)
        memory_of(owner).given.remove(loan)
        home.engine.num_loans -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def __repr__(self) -> str:
        return f"<Borrow of {self._owner!r} by {self._loan.stream}{', dropped' if self._loan.dropped else ''}>"


class TensorStream:
    """Operations that run beside those of other streams, on the same ranks: ``stream = Stream("comms")``.

    Each rank runs the operations of a stream in the order issued, in a thread of its own, and on a CUDA stream of its
    own where it has a GPU. A tensor belongs to the stream that made it; others borrow it. Programs that make no stream
    have one.

    Args:
        name: in messages.

    Attributes:
        is_own: whether it is beside the stream of programs that make none.
    """

    is_own = True

    def __init__(self, name: str) -> None:
        self.name = check_text("name", name)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    @contextmanager
    def activate(self) -> Iterator[Self]:
        """Let new tensors, of the mesh that is active or gets active in the block, be made in this stream."""
        with on_stream(self if self.is_own else None):
            yield self

    def borrow(self, tensor: Any, mutable: bool = False) -> tuple[Any, Borrow]:
        """Lend a tensor to this stream, without a copy; at this point of both streams.

        Until the borrow is dropped, the owner's stream may not write to the tensor, nor to what shares its memory; if
        it is lent *mutable*, it may not use it at all, and only then this stream may write to it.

        Args:
            tensor: a tensor of another stream.
            mutable: whether this stream writes to it.

        Returns:
            The tensor in this stream, and the borrow.

        Raises:
            RuntimeError: the tensor is lent already, and one of both loans is mutable.
            TypeError: it is sharded, or requires a gradient: lend ``t.detach()``, or lend it under ``no_grad``.
            ValueError: it belongs to this stream.
        """
        check_instance("tensor", tensor, MeshTensor, "a mesh tensor")
        check_flag("mutable", mutable)
        home: View = tensor._h.view
        if home.mesh:
            raise TypeError("a sharded tensor belongs to no stream: lend t.to_local()")
        if tensor._m.grads and torch.is_grad_enabled():
            raise TypeError("borrow of a tensor that requires a gradient: lend t.detach(), or lend it under no_grad")
        operations: Any = home.operations
        view: View = operations.on_stream(self, home.region)
        if view.engine is home.engine:
            raise ValueError(f"{tensor!r} belongs to {self!r} already")
        check_use(tensor, writes=mutable)
        token = home.engine.emit(home, [LOAN, tensor._h.number, -1], 1)
        home.engine.flush()
        number = view.engine.emit(view, [TAKE, signed(home.engine.key), token, -1, 0], 1)
        loan = Loan(repr(self), site_here(1), is_mutable=mutable)
        memory_of(tensor).given.append(loan)
        home.engine.num_loans += 1
        view.engine.num_loans += 1  # for ever: what was borrowed is never used again
        borrowed = MeshTensor.make(number, view, tensor._m.with_grads(False, leaf=True))
        borrowed._memory = TensorMemory(loan)
        return borrowed, Borrow(tensor, borrowed, loan)


Stream = TensorStream

_default = TensorStream("main")
_default.is_own = False


def get_active_stream() -> TensorStream:
    """The stream that new tensors are made in; one called ``main`` if no other is active."""
    found = current_stream()
    return found if isinstance(found, TensorStream) else _default


def signed(key: int) -> int:
    """A key of an engine as an integer of a record."""
    return key - (1 << 64) if key >> 63 else key
