"""Results of calls that are written into arrays and tensors of the caller, see `Endpoint.options`.

Knows arrays and tensors by what they have, so that it imports neither NumPy nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from monarch_hpc.core.arguments import shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Extent

__all__ = ["Landing"]

_PATH = "out"


@dataclass(frozen=True, slots=True)
class Landing:
    """Where results go.

    Args:
        out: an array or a tensor, or dicts, lists and tuples of them.
    """

    out: Any

    def check(self) -> None:
        """Check that results can be written.

        Raises:
            TypeError: a part is neither an array nor a tensor.
            ValueError: there is no part, or one is read-only.
        """
        leaves = list(_leaves(_PATH, self.out))
        if not leaves:
            raise ValueError(f"out has no array or tensor: {shown(self.out)}")
        for path, leaf in leaves:
            if not _is_leaf(leaf):
                raise TypeError(f"{path} must be an array or a tensor, or a dict or list of these, not {shown(leaf)}")
            if not _is_tensor(leaf) and not leaf.flags.writeable:
                raise ValueError(f"{path} is read-only")

    def check_mesh(self, extent: Extent) -> None:
        """Check that each array begins with the dimensions of a mesh.

        Raises:
            ValueError: one does not.
        """
        sizes = tuple(extent.sizes)
        for path, leaf in _leaves(_PATH, self.out):
            if tuple(leaf.shape[: len(sizes)]) != sizes:
                raise ValueError(
                    f"{path} has shape {tuple(leaf.shape)}: for a mesh of {extent} it must begin with {sizes}"
                )

    def take(self, value: object, where: str) -> Any:
        """Write the result of one actor; return *out*.

        Args:
            where: the actor, for errors.

        Raises:
            ValueError: the result has another structure, shape or type; then nothing is written.
        """
        self._check([(value, self.out, where)])
        _write(value, self.out)
        return self.out

    def take_all(self, values: Sequence[object], extent: Extent, skipped: set[int]) -> list[Any]:
        """Write the results of a mesh, each where its coordinates say; return what was written, or came, for each.

        Args:
            skipped: ranks whose values are no results.

        Raises:
            ValueError: one has another structure, shape or type; then nothing is written.
        """
        parts = [
            value if rank in skipped else _part(self.out, tuple(extent.point(rank).values()))
            for rank, value in enumerate(values)
        ]
        taken = [rank for rank in range(len(values)) if rank not in skipped]
        self._check([(values[rank], parts[rank], str(extent.point(rank))) for rank in taken])
        for rank in taken:
            _write(values[rank], parts[rank])
        return parts

    @staticmethod
    def _check(landings: Sequence[tuple[object, Any, str]]) -> None:
        for value, out, where in landings:
            problem = _mismatch(_PATH, value, out)
            if problem:
                raise ValueError(f"the result of {where} does not fit, and nothing was written: {problem}")


def _leaves(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _leaves(f"{path}[{shown(key).partition(', ')[0]}]", part)
    elif isinstance(tree, list | tuple):
        for place, part in enumerate(tree):
            yield from _leaves(f"{path}[{place}]", part)
    else:
        yield path, tree


def _part(tree: Any, coordinates: tuple[int, ...]) -> Any:
    if isinstance(tree, dict):
        return {key: _part(part, coordinates) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_part(part, coordinates) for part in tree]
    return tree[(*coordinates, ...)]  # a view, also of a single element


def _mismatch(path: str, value: Any, out: Any) -> str:
    """Why *value* cannot be written to *out*; empty if it can."""
    if isinstance(out, dict):
        if not isinstance(value, dict) or value.keys() != out.keys():
            return f"{path} is a dict with keys {shown(list(out))}, the result {shown(value)}"
        pairs = [(f"{path}[{shown(key).partition(', ')[0]}]", value[key], part) for key, part in out.items()]
    elif isinstance(out, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(out):
            return f"{path} has {len(out)} parts, the result is {shown(value)}"
        pairs = [(f"{path}[{place}]", *both) for place, both in enumerate(zip(value, out, strict=True))]
    elif not _is_leaf(value) or _is_tensor(value) is not _is_tensor(out):
        return f"{path} is {_described(out)}, the result {_described(value) if _is_leaf(value) else shown(value)}"
    elif tuple(value.shape) != tuple(out.shape) or value.dtype != out.dtype:
        return f"{path} is {_described(out)}, the result {_described(value)}"
    else:
        return ""
    return next((problem for pair in pairs if (problem := _mismatch(*pair))), "")


def _write(value: Any, out: Any) -> None:
    if isinstance(out, dict):
        for key, part in out.items():
            _write(value[key], part)
    elif isinstance(out, list | tuple):
        for one, part in zip(value, out, strict=True):
            _write(one, part)
    elif _is_tensor(out):
        out.detach().copy_(value.detach())
    else:
        out[...] = value


def _is_leaf(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and (_is_tensor(value) or hasattr(value, "flags"))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _described(leaf: Any) -> str:
    return f"{'a tensor' if _is_tensor(leaf) else 'an array'} of {leaf.dtype} and shape {tuple(leaf.shape)}"
