"""The records that a step has issued, with numbers that do not depend on when it ran, so that two runs compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.layout import layout_of
from monarch_hpc.tensor.stream.records import CallRequest, OptimizerSpec, Ref, TransferSpec
from monarch_hpc.tensor.stream.sites import Site, line_of
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["CannotCapture", "IssuedOp", "Normalizer", "OptimizerMark", "difference_of"]


class CannotCapture(Exception):
    """A step cannot be replayed.

    Args:
        reason: in words.
        is_final: whether another recording cannot help.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason, is_final)
        self.reason = reason
        self.is_final = is_final


class IssuedOp(NamedTuple):
    """A record of a step, in which own values are counted from 0.

    Attributes:
        ints: its integers.
        own: positions of numbers of values that the step makes.
        formals: positions of its arguments, and the place of each.
        obj: what it refers to; in a form that is equal for equal ones.
        obj_at: position of the place of that; 0 if there is none.
        makes: own values that it makes.
        site: the line that issued it.
    """

    ints: tuple[int, ...]
    own: tuple[int, ...]
    formals: tuple[tuple[int, int], ...]
    obj: Any
    obj_at: int
    makes: range
    site: Site

    @property
    def key(self) -> tuple[Any, ...]:
        """What it does."""
        obj = self.obj
        if isinstance(obj, torch.Tensor):
            with torch._C.DisableTorchFunction():
                seen = bytes(obj.detach().reshape(-1).view(torch.uint8).tolist())
            obj = (str(obj.dtype), tuple(obj.shape), obj.requires_grad, seen)
        return (self.ints, self.own, self.formals, obj)


class OptimizerMark(NamedTuple):
    """A step of an optimizer among the frames of a recording.

    Attributes:
        begin: place of the first frame.
        end: place after the last one.
        spec: the optimizer.
        site: the line.
    """

    begin: int
    end: int
    spec: OptimizerSpec
    site: Site


class Normalizer:
    """Turns the frames of a step into `IssuedOp`s.

    Args:
        engine: the engine.
        view: the ranks of the step.
        base: numbers of values from here on are the step's own.
        formals: places of arguments by the numbers of their values.

    Attributes:
        ops: the records.
        freed: numbers of own values that the program has dropped.
        own: places of own values by number.
        externals: the lines that use other values, by number.
    """

    def __init__(self, engine: TensorEngine, view: View, base: int, formals: dict[int, int]) -> None:
        self.ops: list[IssuedOp] = []
        self.freed: set[int] = set()
        self.own: dict[int, int] = {}
        self.externals: dict[int, Site] = {}
        self._engine = engine
        self._view = view
        self._base = base
        self._formals = formals

    def add(self, view: View, ints: list[int], objects: list[Any], sites: Iterable[Site], *, is_step: bool) -> None:
        """Add a frame.

        Args:
            is_step: whether it belongs to the step of an optimizer, of which reads of gradients are kept only.

        Raises:
            CannotCapture: a record of it cannot be replayed.
        """
        lines = iter(sites)
        i = 0
        while i < len(ints):
            try:
                layout = layout_of(ints, i, objects, self._engine.templates.spec_of)
            except ValueError as error:
                raise CannotCapture(f"a record cannot be replayed: {error}") from None
            record = ints[i : i + layout.size]
            i += layout.size
            if record[0] == records.FREE:
                self.freed.update(number for number in record[2:] if number >= self._base)
                continue
            site = next(lines)
            if record[0] == records.UPDATE:
                continue  # a replay has its own commit
            if record[0] == records.COMMIT and not is_step:
                raise CannotCapture(f"it makes a version beside those of optimizers, at {line_of(site)}")
            if view is not self._view:
                raise CannotCapture(
                    f"it uses tensors on {view.region.extent} besides those on {self._view.region.extent}, at "
                    f"{line_of(site)}"
                )
            if record[0] == records.LEND:
                raise CannotCapture(f"an actor is called with a mesh tensor at {line_of(site)}")
            if record[0] >= records.FIRST_TEMPLATE and isinstance(
                self._engine.templates.spec_of(record[0]), TransferSpec
            ):
                raise CannotCapture(f"to_mesh() moves a tensor, at {line_of(site)}")
            if record[0] == records.BACKWARD and is_step:
                raise CannotCapture(f"an optimizer calls backward() in its step, at {line_of(site)}")
            if is_step and record[0] != records.GET_GRAD:
                continue
            if record[0] == records.PUT and record[layout.out] in self._formals:
                continue  # a tensor of the program, which each replay sends anew
            self._append(record, layout, objects[record[layout.obj]] if layout.obj else None, site)

    def step(self, place: int, mark: OptimizerMark) -> None:
        """Add the step of the optimizer at *place*."""
        for state in mark.spec.state:
            for name, entry in state.items():
                if isinstance(entry, Ref) and entry.number >= self._base:
                    raise CannotCapture(f"the optimizer has made its {name!r} in this call", is_final=False)
                if isinstance(entry, Ref):
                    self.externals.setdefault(entry.number, mark.site)
        for number in (number for numbers, _ in mark.spec.groups for number in numbers):
            if number >= self._base or number in self._formals:
                raise CannotCapture(f"an optimizer has parameters that the step has made, at {line_of(mark.site)}")
            self.externals.setdefault(number, mark.site)
        self.ops.append(IssuedOp((records.OPTIMIZER_STEP, place), (), (), None, 0, range(0), mark.site))

    def _append(self, record: list[int], layout: Any, obj: Any, site: Site) -> None:
        own: list[int] = []
        formals: list[tuple[int, int]] = []
        if isinstance(obj, CallRequest):
            obj = _with_places(obj, [record[place] for place in layout.refs], site)
        for place in layout.refs:
            number = record[place]
            if number in self._formals:
                formals.append((place, self._formals[number]))
                record[place] = 0
            elif number >= self._base:
                if number not in self.own:
                    raise CannotCapture(f"it uses a tensor of an optimizer's step, at {line_of(site)}")
                own.append(place)
                record[place] = self.own[number]
            elif number:
                self.externals.setdefault(number, site)
        begin = len(self.own)
        if layout.out:
            first = record[layout.out]
            for number in range(first, first + layout.num_outs):
                self.own[number] = len(self.own)
            if layout.num_outs:
                own.append(layout.out)
            record[layout.out] = self.own[first] if layout.num_outs else 0
        if layout.obj:
            record[layout.obj] = 0
        makes = range(begin, len(self.own))
        self.ops.append(IssuedOp(tuple(record), tuple(own), tuple(formals), obj, layout.obj, makes, site))


def _with_places(request: CallRequest, numbers: list[int], site: Site) -> CallRequest:
    """The request with places among the record's arguments in `Ref`s."""
    if request.num_outs < 0:
        raise CannotCapture(
            f"a function on the ranks has a result of unknown shape, at {line_of(site)}", is_final=False
        )
    loaded: Any = loads(request.packed, request.buffers)

    def placed(leaf: Any) -> Any:
        return Ref(-1 - numbers.index(leaf.number)) if isinstance(leaf, Ref) else leaf

    with torch._C.DisableTorchFunction():
        packed, buffers = dumps(tree_map(placed, loaded, is_leaf=lambda leaf: isinstance(leaf, Ref)))
    return request._replace(packed=packed, buffers=tuple(bytes(one) for one in buffers))


def difference_of(before: list[IssuedOp], after: list[IssuedOp]) -> str:
    """The first difference between two recordings, in words; empty if they are equal."""
    for one, other in zip(before, after, strict=False):
        if one.key != other.key:
            lines = line_of(one.site), line_of(other.site)
            if lines[0] == lines[1]:
                return f"two calls differ in what they do, or in a number or tensor that they use, at {lines[0]}"
            return f"two calls differ: one is at {lines[0]} where the other is at {lines[1]}"
    if len(before) != len(after):
        longer = max(before, after, key=len)
        return f"two calls differ: one has further operations, at {line_of(longer[min(len(before), len(after))].site)}"
    return ""
