"""Arrays and tensors as they lie in the memory of this process."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, NamedTuple, Protocol

from monarch_hpc.rdma.shard import Shard
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.strides import Strides

__all__ = ["ArrayLibrary", "Leaf", "find_array", "library_of", "look_at_leaf"]


class Leaf(NamedTuple):
    """One array or tensor of a tree, or the shard of one.

    Attributes:
        kind: the library that it belongs to, ``numpy`` or ``torch``.
        dtype: name of its elements' type: ``float32``.
        device: ``cpu``, or the device as torch names it.
        strides: where its elements lie; the first place is an address.
        span: see `Strides.span`.
        allocation: first address of the memory that they are a part of, and the one behind it.
        form: what a new one must be made: see `ArrayLibrary.make`.
        box: its elements in the whole array.
        whole: shape of the whole array.
        data: the array or tensor; it holds the memory.
    """

    kind: str
    dtype: str
    device: str
    strides: Strides
    span: tuple[int, int]
    allocation: tuple[int, int]
    writable: bool
    form: str
    box: Box
    whole: tuple[int, ...]
    data: Any

    @property
    def is_shard(self) -> bool:
        """Whether others have elements that it has not."""
        return self.box.sizes != self.whole


class ArrayLibrary(Protocol):
    """What is asked of NumPy or torch.

    Attributes:
        types: of arrays whose `signature` may be known.
    """

    types: frozenset[type]

    def look(self, what: str, data: Any, box: Box | None, whole: tuple[int, ...]) -> Leaf:
        """Describe *data*; *box* and *whole* if it is a shard.

        Raises:
            TypeError: it has no memory that can be read as it is; *what* names it.
        """
        ...

    def signature(self, data: Any) -> tuple[Any, ...] | None:
        """What is equal for arrays that `look` finds the same of, but for `Leaf.data`; None where that is not known.

        It costs a tenth of `look`, and holds no memory.
        """
        ...

    def look_again(self, what: str, data: Any, signature: tuple[Any, ...]) -> Leaf:
        """The same as `look`, for less where what its `signature` has found helps; for what is no shard."""
        ...

    def glance(self, data: Any) -> object:
        """What is equal for the same object as long as its signature is, at a fraction of the cost.

        The object has a weak reference from the first glance to the last.
        """
        ...

    def item_bytes(self, dtype: str) -> int:
        """Size of an element in bytes.

        Raises:
            TypeError: the library has no such type.
        """
        ...

    def is_floating(self, dtype: str) -> bool:
        """Whether elements are real floating-point numbers."""
        ...

    def memory(self, num_bytes: int, device: str) -> Any:
        """New memory, whose contents are arbitrary, with a buffer or `__cuda_array_interface__`."""
        ...

    def make(self, memory: Any, dtype: str, strides: Strides, form: str) -> Any:
        """An array or tensor of elements that lie in what `memory` returned."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copy elements, and convert them to the type of *target*; they are there on return."""
        ...


@functools.cache
def library_of(kind: str) -> ArrayLibrary:
    """The library of this name, which is imported if need be."""
    module = {"numpy": "monarch_hpc.rdma.trees.arrays", "torch": "monarch_hpc.rdma.trees.tensors"}[kind]
    library: ArrayLibrary = importlib.import_module(module).LIBRARY
    return library


_Found = tuple[ArrayLibrary, Any, Box | None, tuple[int, ...]]


def find_array(what: str, value: Any) -> _Found | None:
    """What `ArrayLibrary.look` takes of an array or tensor, or of a shard, with its library; None for other values.

    Args:
        what: names it in errors.

    Raises:
        TypeError: it is a shard of something else.
    """
    data = value
    box: Box | None = None
    whole: tuple[int, ...] = ()
    if isinstance(value, Shard):
        data, box, whole = value.data, Box(value.offsets, tuple(value.data.shape)), value.shape
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return library_of("torch"), data, box, whole
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(data, numpy.ndarray) and not data.dtype.hasobject:
        return library_of("numpy"), data, box, whole
    if box is not None:
        raise TypeError(f"{what} is a Shard of {type(data).__name__}: its data must be a NumPy array or a torch tensor")
    return None


def look_at_leaf(what: str, value: Any) -> Leaf | None:
    """Describe an array or tensor, or a shard; None for other values.

    Args:
        what: names it in errors.

    Raises:
        TypeError: it has no memory that can be read as it is.
    """
    found = find_array(what, value)
    return None if found is None else found[0].look(what, *found[1:])
