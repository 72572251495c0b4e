"""Saves and loads what lives on a mesh: parameters, buffers, states of optimizers, random numbers, plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint._traverse import set_element
from torch.utils._pytree import tree_map

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.fetch import read_on_all
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import Ref
from monarch_hpc.tensor.training.calls import Issued, held

__all__ = ["Saving", "load", "save"]

_RANDOM = "mesh_random"
"""The entry of a checkpoint with the state of the random numbers."""

_Contents = dict[tuple[Any, ...], tuple[tuple[int, ...], torch.dtype] | None]


class Saving:
    """A checkpoint that the ranks write."""

    def __init__(self, view: View, number: int, path: str) -> None:
        self._view = view
        self._holder = held(number, view)
        self._path = path

    def __repr__(self) -> str:
        return f"Saving({self._path!r})"

    def done(self) -> bool:
        """Whether it is complete, or has failed."""
        return all(_answers(self._view, "checkpoints.is_done", [self._ref], [self._ref.number]))

    def wait(self) -> None:
        """Wait until it is complete; the ranks do nothing else meanwhile.

        Raises:
            DeviceMeshError: a rank is gone.
            Exception: a rank could not write it.
        """
        _answers(self._view, "checkpoints.outcome", [self._ref], [self._ref.number])

    @property
    def _ref(self) -> Ref:
        return Ref(self._holder._h.number)


def _answers(view: View, name: str, args: list[Any], refs: list[int]) -> list[Any]:
    """What a function returns on the ranks; waits for it."""
    number = Issued(name, args, refs, -2).issue(view)
    try:
        return [answer for _, answer in read_on_all(view, number).get().items()]
    finally:
        view.dead.append(number)


def save(view: View, state: Mapping[str, Any], path: str | os.PathLike[str], *, background: bool) -> Saving:
    """Save a checkpoint; see `Mesh.save` and `Mesh.async_save`."""
    check_instance("state", state, Mapping, "a mapping of names to what is saved")
    if _RANDOM in state:
        raise ValueError(f"{_RANDOM!r} in state: the name is taken by the random numbers of the mesh")
    where = _absolute(path)
    tensors: list[MeshTensor] = []

    def sent(leaf: Any) -> Any:
        if leaf.__class__ is not MeshTensor:
            return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        if leaf._h.view is not view:
            raise foreign(leaf, view)
        tensors.append(leaf)
        return Ref(leaf._h.number)

    parts = {name: _tree_of(part) for name, part in state.items()}
    with torch._C.DisableTorchFunction():
        tree = tree_map(sent, parts)
    number = Issued("checkpoints.random_state", [], [], -2).issue(view)
    tree[_RANDOM] = Ref(number)
    refs = [*(tensor._h.number for tensor in tensors), number]
    timeout_s = view.engine.config.collective_s
    saving = Saving(
        view, Issued("checkpoints.begin", [tree, where, timeout_s, background], refs, -2).issue(view), where
    )
    view.dead.append(number)
    if view.engine.log is not None:
        view.engine.log.note_once(view.engine.num_issued, "a checkpoint was saved")
    if not background:
        saving.wait()
    return saving


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that ranks with another working folder understand."""
    check_instance("path", path, (str, os.PathLike), "the path of a folder, as str or Path")
    where = os.fspath(path)
    check_instance("path", where, str, "the path of a folder, as str or Path")
    if "\0" in where or not where:
        raise ValueError(f"path {where!r}: not the path of a folder")
    try:
        return os.path.abspath(where)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno, "the working folder has been deleted, give an absolute path instead of", where
        ) from error


def _tree_of(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def load(view: View, state: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a checkpoint; see `Mesh.load`."""
    check_instance("state", state, Mapping, "a mapping of names to what is loaded")
    where = _absolute(path)
    found: _Contents = _answers(view, "checkpoints.contents", [where], [])[0]
    wanted = _Wanted(view, found, where)
    for name, part in state.items():
        wanted.add(name, part)
    wanted.add_random()
    number = Issued("checkpoints.load", [wanted.tree, where], wanted.refs, -2).issue(view)
    plain = read_on_all(view, number).get()
    view.dead.append(number)
    loaded: dict[str, Any] = next(answer for _, answer in plain.items())
    for place, tensor in wanted.tensors.items():
        set_element(loaded, place, tensor)
    random = Issued("checkpoints.set_random_state", [loaded.pop(_RANDOM)], [], 0)
    for name, part in state.items():
        if isinstance(part, torch.optim.Optimizer):
            loaded[name]["state"] = {int(key): value for key, value in loaded[name].get("state", {}).items()}
        if hasattr(part, "load_state_dict") and not isinstance(part, nn.Module):
            part.load_state_dict(loaded[name])
    random.issue(view)  # last: what was loaded may have drawn some
    return {name: state[name] if hasattr(state[name], "state_dict") else part for name, part in loaded.items()}


class _Wanted:
    """The tree that a checkpoint is loaded into.

    Attributes:
        tree: with `Ref` for sharded tensors.
        refs: their numbers.
        tensors: they by their places in the tree.
    """

    def __init__(self, view: View, found: _Contents, path: str) -> None:
        self._view = view
        self._found = found
        self._path = path
        self.tree: dict[str, Any] = {}
        self.refs: list[int] = []
        self.tensors: dict[tuple[Any, ...], MeshTensor] = {}

    def add(self, name: str, part: Any) -> None:
        """Add an entry of the state.

        Raises:
            KeyError: the checkpoint lacks it.
            ValueError: a tensor has another shape there.
        """
        places = {place: what for place, what in self._found.items() if place[0] == name}
        own = _leaves_of((name,), _tree_of(part))
        missing = [".".join(map(str, place)) for place in own if place not in places and _is_tensor(own, place)]
        if missing or not places:
            raise KeyError(f"{self._path} lacks {(missing or [name])[0]!r}; it has: {', '.join(self._names())}")
        params = [param for group in getattr(part, "param_groups", ()) for param in group["params"]]
        for place, what in places.items():
            tensor = own.get(place)
            if what is None or (tensor.__class__ is not MeshTensor and (tensor is not None or not what[0])):
                # Small things travel to the program.
                set_element(self.tree, place, None if what is None else torch.zeros(what[0], dtype=what[1]))
                continue
            if tensor is None:
                tensor = self._made(place, *what, params)
            elif tuple(tensor.shape) != what[0]:
                raise ValueError(f"{'.'.join(map(str, place))} is {tuple(tensor.shape)}, and {what[0]} in {self._path}")
            elif tensor._h.view is not self._view:
                raise foreign(tensor, self._view)
            set_element(self.tree, place, Ref(tensor._h.number))
            self.refs.append(tensor._h.number)
            self.tensors[place] = tensor

    def _names(self) -> list[str]:
        return sorted({str(place[0]) for place in self._found} - {_RANDOM})

    def _made(
        self, place: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype, params: list[Any]
    ) -> MeshTensor:
        """A tensor for an entry of an optimizer's state, sharded as its parameter is."""
        at = int(place[2]) if len(place) == 4 and str(place[2]).isdigit() else len(params)
        like = params[at] if at < len(params) and params[at].__class__ is MeshTensor else None
        refs = [] if like is None else [like._h.number]
        given = None if like is None else Ref(like._h.number)
        number = Issued("checkpoints.new_like", [given, shape, dtype], refs, 1).issue(self._view)
        meta = Meta.make(shape, contiguous_strides(shape), dtype, torch.device("cpu"), False, True)
        return MeshTensor.make(number, self._view, meta)

    def add_random(self) -> None:
        """Add the state of the random numbers."""
        for place, what in self._found.items():
            if place[0] == _RANDOM:
                set_element(self.tree, place, None if what is None else torch.zeros(what[0], dtype=what[1]))


def _is_tensor(own: dict[tuple[Any, ...], Any], place: tuple[Any, ...]) -> bool:
    return own[place].__class__ is MeshTensor


def _leaves_of(place: tuple[Any, ...], tree: Any) -> dict[tuple[Any, ...], Any]:
    """The leaves of nested mappings and lists by their places, as torch writes them."""
    if isinstance(tree, Mapping):
        parts: Any = ((str(key), part) for key, part in tree.items())
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    else:
        return {place: tree}
    found: dict[tuple[Any, ...], Any] = {}
    for key, part in parts:
        found.update(_leaves_of((*place, key), part))
    return found
