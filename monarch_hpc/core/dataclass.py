"""Dataclasses whose methods cost nothing at import: `@dataclass` of the standard library compiles up to seven a class.

A process of this package defines well over a hundred dataclasses and makes objects of a few dozen. Compiling all of
their methods took two fifths of the time of its imports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import threading
from collections.abc import Callable, Iterator
from reprlib import recursive_repr
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar

__all__ = ["compile_next", "dataclass"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type[T] | None = None,
        /,
        *,
        init: bool = True,
        repr: bool = True,
        eq: bool = True,
        frozen: bool = False,
        kw_only: bool = False,
        slots: bool = False,
    ) -> type[T] | Callable[[type[T]], type[T]]:
        """Make *cls* a dataclass; the parameters are those of the standard library that this package uses.

        `__init__` is compiled when it is first used; the other methods are closures over the fields.
        """

        def make(cls: type[T]) -> type[T]:
            own = dict(vars(cls))
            # Without methods the standard library compiles nothing. It collects the fields, and checks them.
            types = own.get("__annotations__", {})
            cls.__annotations__ = {name: _SOME if _is_plain(text) else text for name, text in types.items()}
            with _bases_not_frozen(cls) if frozen else contextlib.nullcontext():
                cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)
            cls.__annotations__ = types
            for name, field in cls.__dataclass_fields__.items():
                field.type = types.get(name, field.type)  # a field of a base has its type
            cls.__dataclass_params__.frozen = frozen
            fields = dataclasses.fields(cls)
            methods: dict[str, object] = {}
            if init:
                methods["__init__"] = initial = _Init(cls, frozen=frozen)
                _waiting.append(initial)
            if repr:
                methods["__repr__"] = _repr(tuple(field.name for field in fields if field.repr))
            if eq:
                values = _values(tuple(field.name for field in fields if field.compare))
                methods["__eq__"] = _eq(values)
                if own.get("__hash__") is None:  # Python sets None beside an own __eq__
                    methods["__hash__"] = _hash(values) if frozen else None
            if frozen:
                methods["__setattr__"], methods["__delattr__"] = _refusals(cls, {field.name for field in fields})
                if slots:  # copies and pickles would set the attributes
                    methods["__getstate__"], methods["__setstate__"] = _state(tuple(field.name for field in fields))
            for name, method in methods.items():
                if own.get(name) is None:
                    setattr(cls, name, method)
            return cls

        return make if cls is None else make(cls)


_SOME = object
"""Stands for a field's type while the standard library collects the fields."""


def _is_plain(annotation: object) -> bool:
    """Whether an annotation is text that says nothing to the standard library, which takes long to find that out."""
    return isinstance(annotation, str) and not any(word in annotation for word in ("ClassVar", "InitVar", "KW_ONLY"))


_deriving = threading.Lock()


def _renew_lock() -> None:
    global _deriving
    _deriving = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def _bases_not_frozen(cls: type) -> Iterator[None]:
    """Let the bases of *cls* look as if they were not frozen.

    The standard library derives only frozen classes from frozen ones, and compiles two methods of each, which took
    three quarters of the time to make our messages.
    """
    found = [getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:]]
    with _deriving:
        frozen = [params for params in found if params is not None and params.frozen]
        for params in frozen:
            params.frozen = False
        try:
            yield
        finally:
            for params in frozen:
                params.frozen = True


class _Init:
    """The `__init__` of a dataclass until its first use, which replaces it by a function."""

    def __init__(self, cls: type, *, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> object:
        return self.compile().__get__(instance, owner)

    def compile(self) -> FunctionType:
        """Compile the function, and put it into the class."""
        function = _init(self._cls, frozen=self._frozen)
        setattr(self._cls, "__init__", function)  # noqa: B010 mypy rejects the assignment
        return function

    @property
    def is_used(self) -> bool:
        """Whether it has been replaced."""
        return vars(self._cls).get("__init__") is not self


_waiting: list[_Init] = []


def compile_next() -> bool:
    """Compile the `__init__` of another dataclass, for processes that are about to be forked; False if none is left."""
    while _waiting:
        initial = _waiting.pop()
        if not initial.is_used:
            initial.compile()
            return True
    return False


def _init(cls: type, *, frozen: bool) -> FunctionType:
    """Compile the `__init__` of *cls*."""
    fields = dataclasses.fields(cls)
    names = {field.name for field in fields}
    own = "self" if "self" not in names else "_own"
    scope: dict[str, object] = {"_set": object.__setattr__, "_none": dataclasses.MISSING}
    parameters: list[str] = []
    by_keyword: list[str] = []
    lines: list[str] = []
    for number, field in enumerate(fields):
        value = field.name
        has_factory = field.default_factory is not dataclasses.MISSING
        has_default = field.default is not dataclasses.MISSING
        if has_default:
            scope[f"_default{number}"] = field.default
            value = value if field.init else f"_default{number}"
        if has_factory:
            scope[f"_make{number}"] = field.default_factory
            value = f"_make{number}()" + (f" if {field.name} is _none else {field.name}" if field.init else "")
        if field.init:
            default = " = _none" if has_factory else f" = _default{number}" if has_default else ""
            (by_keyword if field.kw_only else parameters).append(field.name + default)
        if field.init or has_factory or has_default:
            lines.append(f"_set({own}, {field.name!r}, {value})" if frozen else f"{own}.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(f"{own}.__post_init__()")
    if by_keyword:
        by_keyword.insert(0, "*")
    head = ", ".join([own, *parameters, *by_keyword])
    text = "\n ".join([f"def __init__({head}):", *(lines or ["pass"])])
    # Compiled first: executing text makes Python forget that a KeyboardInterrupt ends the program, which then exits
    # with 1 instead of 130.
    exec(compile(text, f"<dataclass {cls.__qualname__}>", "exec"), scope)
    made = scope["__init__"]
    assert isinstance(made, FunctionType)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**{field.name: field.type for field in fields if field.init}, "return": None}
    return made


def _values(names: tuple[str, ...]) -> Callable[[object], object]:
    if len(names) == 1:
        (name,) = names
        return lambda one: (getattr(one, name),)
    return operator.attrgetter(*names) if names else lambda _one: ()


def _repr(names: tuple[str, ...]) -> Callable[[object], str]:
    @recursive_repr()
    def shown(self: object) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({inner})"

    return shown


def _eq(values: Callable[[object], object]) -> Callable[[object, object], object]:
    def equal(self: object, other: object) -> object:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return equal


def _hash(values: Callable[[object], object]) -> Callable[[object], int]:
    def hashed(self: object) -> int:
        return hash(values(self))

    return hashed


def _refusals(
    cls: type, names: set[str]
) -> tuple[Callable[[object, str, object], None], Callable[[object, str], None]]:
    def refuse_set(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def refuse_delete(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    return refuse_set, refuse_delete


def _state(names: tuple[str, ...]) -> tuple[Callable[[object], list[object]], Callable[[object, list[object]], None]]:
    def state_of(self: object) -> list[object]:
        return [getattr(self, name) for name in names]

    def restore(self: object, state: list[object]) -> None:
        for name, value in zip(names, state, strict=False):
            object.__setattr__(self, name, value)

    return state_of, restore
