"""References to objects on the ranks."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils._pytree import tree_map

__all__ = ["OpaqueRef", "with_keys"]


class OpaqueRef:
    """Holds any object on each rank: a function with `remote` makes it, others take it as an argument.

    A function on the ranks returns ``OpaqueRef(value)``, and finds the value in `value` of one that it is given. In the
    program it has no value; `propagate` states that a function returns one by ``OpaqueRef(None)``. The objects are
    dropped with the last reference of the program.

    Args:
        value: the object.
    """

    _key: Any = None

    def __init__(self, value: Any = None) -> None:
        self._value = value

    @classmethod
    def _of(cls, key: Any) -> OpaqueRef:
        made = OpaqueRef()
        made._key = key
        return made

    @property
    def value(self) -> Any:
        """The object; on the ranks.

        Raises:
            TypeError: this is the program, which does not have it.
        """
        if self._key is not None:
            raise TypeError("the value of an OpaqueRef is on the ranks: pass it to a function with remote()")
        return self._value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on the ranks>" if self._key is not None else f"OpaqueRef({self._value!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an OpaqueRef cannot be pickled: pass it to functions with remote() on its own mesh")


def with_keys(tree: Any) -> Any:
    """Lists, tuples and dicts with the tensor that stands for its objects in place of each reference.

    Raises:
        TypeError: a reference was made in the program.
    """
    return tree_map(_key_of, tree)


def _key_of(leaf: Any) -> Any:
    if not isinstance(leaf, OpaqueRef):
        return leaf
    if leaf._key is None:
        raise TypeError("this OpaqueRef was made in the program: functions with remote() make them on the ranks")
    return leaf._key
