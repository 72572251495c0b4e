"""Records the operators that run on this rank's parts of sharded tensors, below DTensor and autograd.

What is recorded is exact only if nothing else decides what runs. So a trace refuses whatever it does not know:
operators that read a value or make shapes of it, tensors that came from nowhere, random numbers of another source.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from monarch_hpc.tensor.worker.sharded.traits import traits_of
from monarch_hpc.tensor.worker.values import storage_of

__all__ = [
    "Call",
    "CannotLower",
    "Draw",
    "Instruction",
    "SlotFact",
    "StepTrace",
    "TensorSlot",
    "WriteNote",
    "own_part",
    "place_of",
]

_WRAPPERS = (DTensor, AsyncCollectiveTensor)
_NAMESPACES = ("aten", "_c10d_functional")
"""Other operators keep state of their own, as those of process groups and of FSDP do."""
_SAME = frozenset({"aten.detach.default", "aten.detach_.default", "aten.alias.default"})
"""Their result is their argument, but for autograd."""
_LIFT = "aten.lift_fresh.default"
"""Makes a tensor of a number or list in some code."""
_INDEXING = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
"""Their results have shapes of their arguments, but for masks."""
_CONSTANTS = (
    *(int, float, bool, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_MAX_CONSTANT = 64
"""Elements of such a number or list."""


class CannotLower(Exception):
    """A step is replayed as it was recorded.

    Args:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TensorSlot(NamedTuple):
    """Stands for a tensor among the arguments of a call."""

    number: int


class SlotFact(NamedTuple):
    """What the tensor of a slot was like.

    Attributes:
        device: where it was.
        memory: the first slot whose memory it shares, by what the operators did; its own number if it shares none.
    """

    device: torch.device
    memory: int


class Call(NamedTuple):
    """An operator, its arguments, and the slots of its results: None for what is no tensor, or is in its slot already.

    Attributes:
        is_many: whether it returns a list or tuple.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    is_many: bool


class WriteNote(NamedTuple):
    """Tensors that are about to be written to, for the journal."""

    slots: tuple[int, ...]


class Draw(NamedTuple):
    """The mesh's random numbers are in force from here on, or no longer."""

    begins: bool


Instruction = Call | WriteNote | Draw


class StepTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """While it is entered below the mode of sharded tensors, and not paused, notes what runs on parts.

    Attributes:
        instructions: what has run since somebody took the list.
        slots: the slots so far.
        constants: tensors by slot that were numbers in some code.
        reason: why it cannot be replayed; empty while it can.
        is_paused: whether nothing is noted.
    """

    sees_all = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.instructions: list[Instruction] = []
        self.slots: list[SlotFact] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.reason = ""
        self.is_paused = True
        self._draws = 0
        self._slots: dict[int, tuple[int, Any]] = {}
        self._places: dict[tuple[Any, ...], int] = {}

    # ---- tensors ----

    def define(self, tensor: torch.Tensor, memory: int | None = None) -> int:
        """Give a tensor a slot of its own.

        Args:
            memory: see `SlotFact`; None if it shares none with an earlier slot.
        """
        slot = len(self.slots)
        self.slots.append(SlotFact(tensor.device, slot if memory is None else memory))
        self._put(tensor, slot)
        return slot

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor, or of another one that is the same memory, seen alike; None if it has none."""
        found = self._slots.get(id(tensor))
        return self._places.get(place_of(tensor)) if found is None else found[0]

    def _put(self, tensor: torch.Tensor, slot: int) -> None:
        key, place = id(tensor), place_of(tensor)
        self._places[place] = slot

        def forget(_: object) -> None:
            self._slots.pop(key, None)
            if self._places.get(place) == slot:
                del self._places[place]

        self._slots[key] = slot, weakref.ref(tensor, forget)

    # ---- what runs ----

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, _WRAPPERS) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if self.is_paused or self.reason or any(_is_abstract(leaf) for leaf in tree_iter((args, kwargs))):
            return op(*args, **kwargs)
        try:
            given = self._given(op, args, kwargs)
        except CannotLower as refusal:
            self.reason = refusal.reason
            return op(*args, **kwargs)
        result = op(*args, **kwargs)
        try:
            self._note(op, *given, result, tree_iter((args, kwargs)))
        except CannotLower as refusal:
            self.reason = refusal.reason
        return result

    def _given(self, op: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = str(op)
        changes_shape = torch.Tag.inplace_view in op.tags and name not in _SAME  # resize_ and set_, too
        if op.namespace not in _NAMESPACES or changes_shape:
            raise CannotLower(f"it runs {name}, which is more than a function of tensors")
        is_shaped_by_data = torch.Tag.dynamic_output_shape in op.tags and not (name in _INDEXING and _by_number(args))
        if is_shaped_by_data or torch.Tag.data_dependent_output in op.tags:
            raise CannotLower(f"it runs {name}, whose result decides what runs next")
        if traits_of(op).draws(args, kwargs) and not self._draws:
            raise CannotLower(f"it runs {name} with random numbers that are not the mesh's")
        if name == _LIFT and self.slot_of(args[0]) is None and args[0].numel() <= _MAX_CONSTANT:
            self.constants[self.define(args[0])] = args[0].clone()
        return tuple(self._encoded(name, arg) for arg in args), {
            key: self._encoded(name, arg) for key, arg in kwargs.items()
        }

    def _encoded(self, name: str, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            slot = self.slot_of(arg)
            if slot is None:
                raise CannotLower(f"{name} gets a tensor that no operator of the step has made")
            return TensorSlot(slot)
        if isinstance(arg, (list, tuple)):
            items = [self._encoded(name, item) for item in arg]
            return items if isinstance(arg, list) else tuple(items)
        if not isinstance(arg, _CONSTANTS):
            raise CannotLower(f"{name} gets a {type(arg).__name__}")
        return arg

    def _note(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, leaves: Iterable[Any]) -> None:
        name = str(op)
        if name in _SAME or name == _LIFT:
            self._put(result, args[0].number)
            return
        is_many = isinstance(result, (list, tuple))
        if not is_many and _is_abstract(result):
            return
        outs: list[int | None] = []
        memories = {
            storage_of(leaf): self.slots[slot].memory
            for leaf in leaves
            if isinstance(leaf, torch.Tensor) and (slot := self.slot_of(leaf)) is not None
        }
        for one in result if is_many else (result,):
            if isinstance(one, torch.Tensor):
                outs.append(None if id(one) in self._slots else self.define(one, memories.get(storage_of(one))))
                memories.setdefault(storage_of(one), len(self.slots) - 1)
            elif one is None:
                outs.append(None)
            else:
                raise CannotLower(f"it runs {name}, which returns a {type(one).__name__}")
        self.instructions.append(Call(op, args, kwargs, tuple(outs), is_many))

    # ---- what the mode of sharded tensors says ----

    @contextmanager
    def saving(self, tensors: Iterable[Any]) -> Iterator[None]:
        """The journal is told of sharded tensors that are about to be written to."""
        was_paused = self.is_paused
        if not was_paused and not self.reason:
            self._note_written(tensors)
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = was_paused

    def _note_written(self, tensors: Iterable[Any]) -> None:
        slots = []
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                slot = self.slot_of(own_part(tensor))
                if slot is None:
                    self.reason = "it writes to a tensor that no operator of the step has made"
                    return
                slots.append(slot)
        self.instructions.append(WriteNote(tuple(slots)))

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """The mesh's random numbers are in force meanwhile."""
        self._draws += 1
        self.instructions.append(Draw(begins=True))
        try:
            yield
        finally:
            self._draws -= 1
            self.instructions.append(Draw(begins=False))


def own_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a sharded tensor."""
    part: Any = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    found: torch.Tensor = part.elem if isinstance(part, AsyncCollectiveTensor) else part
    return found


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Tells tensors apart that are not the same memory, seen alike."""
    if tensor.layout != torch.strided:
        return (id(tensor),)
    memory = tensor.untyped_storage()._cdata
    bits = tensor.is_conj(), tensor.is_neg()
    return memory, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, bits


def _by_number(args: Any) -> bool:
    """Whether a tensor is indexed by numbers, not by masks."""
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])


def _is_abstract(leaf: Any) -> bool:
    """Whether it is a tensor without elements, by which DTensor works out shapes."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_meta or hasattr(leaf, "fake_mode"))
