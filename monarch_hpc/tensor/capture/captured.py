"""`@mesh.capture`: a function on mesh tensors that is recorded twice, and from then on replayed by one record."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.core.arguments import check_callable
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.tensor.capture.guards import Reached, is_same
from monarch_hpc.tensor.capture.program import CapturedProgram, check_alike
from monarch_hpc.tensor.capture.recorder import StepRecorder, StepRecording
from monarch_hpc.tensor.capture.recording import CannotCapture, difference_of
from monarch_hpc.tensor.capture.results import Results
from monarch_hpc.tensor.ops.dispatch import put
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.infer import autocasts
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import TensorEngine, View

__all__ = ["Captured", "capture"]

P = ParamSpec("P")
R = TypeVar("R")

_MAX_VARIANTS = 16
"""Kinds of calls, by shapes and other arguments, of which programs are kept; further ones push out the oldest."""

_MAX_KINDS = 64
"""Kinds of calls, after which new ones run as written if fewer were replayed."""

_MAX_PROGRAMS = 4
"""Programs of one kind of call: as in training and evaluation, or with other parameters."""

_MAX_RECORDINGS = 24
"""Recordings of one kind of call, after which it runs as written: the function differs from call to call."""

_CHANGED = "it changes the shape of a tensor that it has not made, or the tensor's place in autograd's graph"

_dropped: WeakKeyDictionary[TensorEngine, deque[CapturedProgram]] = WeakKeyDictionary()
"""Programs of functions that are gone; the ranks forget them at the next call of another one."""


class _Run(NamedTuple):
    """A recorded call."""

    recording: StepRecording
    results: Results
    reached: Reached


class _Variant:
    """What is known of one kind of call.

    Attributes:
        programs: the latest first.
        last: the previous call, if it was recorded.
        num_recordings: number of calls that were recorded.
        reason: why it runs as written; empty while it may be replayed.
        is_final: whether it is not recorded any more.
    """

    def __init__(self) -> None:
        self.programs: list[CapturedProgram] = []
        self.last: _Run | None = None
        self.num_recordings = 0
        self.reason = ""
        self.is_final = False


class Captured(Generic[P, R]):
    """A captured function; see `ProcMesh.capture`.

    Attributes:
        num_replays: number of calls that were replayed.
    """

    def __init__(
        self,
        function: Callable[P, R],
        view: View,
        verify: bool,
        active: Callable[[], View | None],
        lowers: bool,
        graphs: bool,
    ) -> None:
        self._function = function
        self._active = active
        self._view = view
        self._verify = verify
        self._lowers = lowers
        self._graphs = graphs
        self._variants: OrderedDict[Any, _Variant] = OrderedDict()
        self._num_variants = 0
        self._why = ""
        self.num_replays = 0
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<captured {getattr(self._function, '__qualname__', self._function)}>"

    def __del__(self) -> None:
        for variant in self._variants.values():
            _drop(self._view.engine, variant.programs)

    @property
    def reason(self) -> str:
        """Why the latest kind of call runs as written; empty if it is replayed, or is still recorded."""
        if self._why or not self._variants:
            return self._why
        return next(reversed(self._variants.values())).reason

    def lowering(self) -> ValueMesh[str]:
        """How each rank replays the program of the latest call: empty if below DTensor, and by graphs if asked to.

        Else it says why not, and of how many operators there are no graphs.

        Raises:
            ValueError: there is none, as the function is not replayed; see `reason`.
            DeviceMeshError: a rank is gone.
        """
        variant = next(reversed(self._variants.values()), None)
        if variant is None or not variant.programs:
            raise ValueError(f"{self!r} is not replayed: {self.reason or 'it was called too seldom'}")
        return variant.programs[0].lowering()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Replay the function, or run and record it."""
        view = self._view
        if view.engine.recorder is not None:  # a part of another captured function
            return self._function(*args, **kwargs)
        leaves, tree = _flattened(args, kwargs)
        given: list[MeshTensor] = []
        sent: list[MeshTensor] = []
        key: list[Any] = [tree, torch.is_grad_enabled(), autocasts(), torch.get_default_dtype(), self._active()]
        for place, leaf in enumerate(leaves):
            if leaf.__class__ is MeshTensor:
                if leaf._h.view is not view:
                    raise foreign(leaf, view)
                key.append(leaf._m)
                given.append(leaf)
            elif isinstance(leaf, torch.Tensor):
                leaves[place] = put(leaf, view)
                sent.append(leaves[place])
                given.append(leaves[place])
                key.append(leaves[place]._m)
            else:  # 0.0 and -0.0 are equal
                key += (leaf.__class__, leaf if leaf.__class__ not in (float, complex) else repr(leaf))
        if len(given) > 1:  # whether some are the same tensor
            first: dict[int, int] = {}
            key += [first.setdefault(tensor._h.number, place) for place, tensor in enumerate(given)]
        variant = self._variant(tuple(key))
        if variant is None or variant.is_final:
            return self._function(*args, **kwargs)
        _forget_dropped(view.engine)
        if self._verify:
            return _unwritten(self._checked(variant, leaves, tree, given), sent)  # type: ignore[no-any-return]
        for place, program in enumerate(variant.programs):
            if program.holds():
                if place:
                    variant.programs.insert(0, variant.programs.pop(place))
                self.num_replays += 1
                return program.replay(given)  # type: ignore[no-any-return]
        return _unwritten(self._recorded(variant, leaves, tree, given), sent)  # type: ignore[no-any-return]

    def _variant(self, key: tuple[Any, ...]) -> _Variant | None:
        """What is known of calls of this kind; None if they cannot be told from others."""
        try:
            variant = self._variants.get(key)
        except TypeError:
            self._why = "an argument cannot be compared with those of other calls: it has no hash"
            return None
        self._why = ""
        if variant is None:
            self._num_variants += 1
            if self._num_variants > _MAX_KINDS and self._num_variants > self.num_replays:
                self._why = "its arguments differ from call to call: pass numbers that change as tensors"
                return None
            variant = self._variants[key] = _Variant()
            if len(self._variants) > _MAX_VARIANTS:
                _drop(self._view.engine, self._variants.popitem(last=False)[1].programs)
        else:
            self._variants.move_to_end(key)
        return variant

    def _run(self, leaves: list[Any], tree: Any, given: list[MeshTensor]) -> tuple[Any, StepRecorder]:
        args, kwargs = (leaves, {}) if tree is None else tree_unflatten(leaves, tree)
        with StepRecorder(self._view, [tensor._h.number for tensor in given]) as recorder:
            return self._function(*args, **kwargs), recorder

    def _recorded(self, variant: _Variant, leaves: list[Any], tree: Any, given: list[MeshTensor]) -> Any:
        """Run the function, and make a program if the previous call did the same."""
        last = variant.last
        if last is not None:  # gradients that were read before are read again, as in each replay
            for leaf, _ in last.recording.leaves.values():
                leaf.grad = None
        for program in variant.programs:
            program.reset_gradients()
        before = Reached(self._function)
        for one in before.hosted:
            one.send_changes()  # not a part of what is recorded
        places = [(tensor._m, tensor._n) for tensor in given]
        result, recorder = self._run(leaves, tree, given)
        variant.num_recordings += 1
        variant.last = None
        try:
            recording = recorder.recording(_tensors(result))
            results = Results(result, recording, given, self._view)
            after = Reached(self._function)
            _check_unchanged(before, after)
            if places != [(tensor._m, tensor._n) for tensor in given]:
                raise CannotCapture(_CHANGED)
            variant.last = _Run(recording, results, after)
            if last is not None:
                check_alike(last.recording, recording)
                results.check_alike(last.results)
                moved = _changed(last.reached, before), _replaced(last.reached, before)
                how = self._lowers, self._graphs
                program = CapturedProgram(self._view, recording, results, len(given), after, *moved, *how)
                variant.programs.insert(0, program)
                _drop(self._view.engine, variant.programs[_MAX_PROGRAMS:])
                del variant.programs[_MAX_PROGRAMS:]
                variant.reason, variant.last = "", None
        except CannotCapture as refusal:
            variant.reason = refusal.reason
            variant.is_final = refusal.is_final and not variant.programs
        if variant.num_recordings >= _MAX_RECORDINGS:
            variant.is_final = True
            variant.reason = variant.reason or "what it depends on changes from call to call"
            _drop(self._view.engine, variant.programs)
            variant.programs = []
        return result

    def _checked(self, variant: _Variant, leaves: list[Any], tree: Any, given: list[MeshTensor]) -> Any:
        """Run the function as written, and compare what it does with what would be replayed."""
        program = next((one for one in variant.programs if one.holds()), None)
        if program is None:
            return self._recorded(variant, leaves, tree, given)
        program.reset_gradients()
        result, recorder = self._run(leaves, tree, given)
        try:
            recording = recorder.recording(_tensors(result))
            difference = difference_of(program.ops, recording.ops)
        except CannotCapture as refusal:
            difference = refusal.reason
        if difference:
            raise RuntimeError(f"{self!r} would be replayed, and that would be wrong: {difference}")
        program.follow()
        return result


def _flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of the arguments, and their structure; None where all are mesh tensors."""
    if not kwargs and all(arg.__class__ is MeshTensor for arg in args):
        return list(args), None
    return tree_flatten((args, kwargs))


def _unwritten(result: Any, sent: list[MeshTensor]) -> Any:
    """The result, if the function has not written to copies of the program's tensors, which would be lost.

    Raises:
        TypeError: it has.
    """
    if any(tensor._is_written for tensor in sent):
        raise TypeError("a captured step writes to an argument that is a tensor of the program: pass a mesh tensor")
    return result


def _tensors(result: Any) -> list[MeshTensor]:
    return [leaf for leaf in tree_flatten(result)[0] if leaf.__class__ is MeshTensor]


def _check_unchanged(before: Reached, after: Reached) -> None:
    """Refuse a function that changes numbers and the like, which no replay would do."""
    for key in _changed(before, after):
        _, holder, name = after.scalars[key][0]
        if not any(holder is vars(one) for one in after.optimizers):
            raise CannotCapture(f"it changes {name!r}, which its replays would not: do that outside of the step")

    for number, place in before.places.items():
        if number in after.places and any(
            one is not other for one, other in zip(place, after.places[number], strict=True)
        ):
            raise CannotCapture(_CHANGED)


def _changed(before: Reached, after: Reached) -> set[tuple[int, Any]]:
    """Keys of scalars that differ."""
    return {
        key
        for key, (_, value) in after.scalars.items()
        if key in before.scalars and not is_same(before.scalars[key][1], value)
    }


def _replaced(before: Reached, after: Reached) -> set[Any]:
    """Keys of things that are others, or were numbers."""
    found = set()
    for key, (edge, value) in after.things.items():
        if key not in before.things:
            is_other = (id(edge[1]), edge[2]) in before.scalars
        elif edge[0] in ("len", "keys"):
            is_other = before.things[key][1] != value
        else:
            is_other = before.things[key][1] is not value
        if is_other:
            found.add(key)
    return found


def _drop(engine: TensorEngine, programs: list[CapturedProgram]) -> None:
    _dropped.setdefault(engine, deque()).extend(programs)


def _forget_dropped(engine: TensorEngine) -> None:
    programs = _dropped.get(engine)
    while programs:
        programs.popleft().forget()


def capture(
    view: View,
    function: Callable[P, R] | None,
    verify: bool,
    active: Callable[[], View | None],
    lowers: bool = True,
    graphs: bool = False,
) -> Callable[..., Any]:
    """See `ProcMesh.capture` and `Mesh.capture`.

    Args:
        active: tells where new tensors are made.

    Raises:
        TypeError: *function* cannot be called.
        ValueError: there are to be graphs of what is not to be lowered.
    """
    if graphs and not lowers:
        raise ValueError("graphs=True with lower=False: graphs are made of what runs below DTensor; leave out lower=")
    if function is None:
        return functools.partial(capture, view, verify=verify, active=active, lowers=lowers, graphs=graphs)
    check_callable("function", function)
    return Captured(function, view, verify, active, lowers, graphs)
