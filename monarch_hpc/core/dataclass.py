"""Dataclasses whose methods cost nothing at import: `@dataclass` of the standard library compiles up to seven a class.

A process of this package defines well over a hundred dataclasses and makes objects of a few dozen. Compiling all of
their methods took two fifths of the time of its imports.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["compile_next", "dataclass", "hints_of"]

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

        `__init__` is compiled when it is first used, and the fields are collected then; the other methods are closures.
        """

        def make(cls: type[T]) -> type[T]:
            sample = _sample(frozen, kw_only, slots)
            fields = _Fields(cls, sample)
            own = vars(cls)
            added: dict[str, object] = {}
            if init:
                added["__init__"] = _Init(fields, frozen=frozen)
            if repr:
                added["__repr__"] = _repr(fields)
            if eq:
                added["__eq__"] = _eq(fields)
                added["__hash__"] = _hash(fields) if frozen else None
            if frozen:
                added["__setattr__"], added["__delattr__"] = _refusals(fields)
                if slots:  # copies and pickles would set the attributes
                    added["__getstate__"], added["__setstate__"] = _state(fields)
            for name in added.keys() & own.keys():
                if own[name] is not None:  # Python sets None for `__hash__`, beside an own `__eq__`
                    del added[name]
            added["__dataclass_fields__"] = fields
            added["__dataclass_params__"] = vars(sample)["__dataclass_params__"]
            added["__match_args__"] = _MatchArgs(fields)
            fields.cls = made = (_with_slots if slots else _with_attributes)(cls, added, fields)
            if isinstance(initial := added.get("__init__"), _Init):
                _waiting.append(initial)
            return made

        return make if cls is None else make(cls)


@functools.cache
def _sample(frozen: bool, kw_only: bool, slots: bool) -> type:
    """Return a dataclass with one field that the standard library has made, and by which it recognizes others."""
    # With a text of its own: the standard library would describe the signature.
    sample = type("Sample", (), {"__doc__": "A sample.", "__annotations__": {"field": object}})
    made: type = dataclasses.dataclass(sample, init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)
    vars(made)["__dataclass_params__"].frozen = frozen
    return made


def _with_slots(cls: type[T], added: Mapping[str, object], fields: _Fields) -> type[T]:
    """Return a copy of *cls* that has *added*, and slots in place of the fields' defaults."""
    content = {name: value for name, value in vars(cls).items() if name not in fields.types}
    content.update(added)
    taken = {name for base in cls.__mro__[1:-1] for name in vars(base).get("__slots__", ())}
    content["__slots__"] = tuple(name for name in fields.types if name not in taken)
    content.pop("__dict__", None)
    content.pop("__weakref__", None)
    metaclass: Callable[..., type[T]] = type(cls)
    made = metaclass(cls.__name__, cls.__bases__, content)
    made.__qualname__ = cls.__qualname__
    return made


def _with_attributes(cls: type[T], added: Mapping[str, object], fields: _Fields) -> type[T]:
    """Give *cls* what is *added*, and the fields' defaults."""
    for name, value in added.items():
        setattr(cls, name, value)
    for name, value in fields.given.items():
        if isinstance(value, dataclasses.Field):
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)
    return cls


class _Fields:
    """The fields of a dataclass, as its `__dataclass_fields__`: collected when they are first asked for.

    Attributes:
        cls: the class.
        types: the annotations of the fields that it adds to those of its bases.
        given: what it has assigned to them: defaults, or results of `dataclasses.field`.

    Raises:
        TypeError, ValueError: as by the decorator of the standard library; and for `ClassVar` and `InitVar`, since it
            takes long to recognize them.
    """

    def __init__(self, cls: type, sample: type) -> None:
        own = vars(cls)
        self.cls = cls
        self.types: Mapping[str, Any] = own.get("__annotations__", {})
        self.given = {name: own[name] for name in self.types if name in own}
        self._sample = sample
        frozen = vars(sample)["__dataclass_params__"].frozen
        for base in cls.__mro__[1:-1]:
            params = vars(base).get("__dataclass_params__")
            if params is not None and params.frozen and not frozen:
                raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
        if any(type(value).__hash__ is None for value in self.given.values()):
            raise ValueError(f"{cls.__qualname__}: objects would share a mutable default: use default_factory")
        words = str(self.types)
        if "ClassVar" in words or "InitVar" in words or "KW_ONLY" in words:
            raise TypeError(f"{cls.__qualname__}: of ClassVar, InitVar and KW_ONLY none is supported")

    def __get__(self, instance: object, owner: type) -> dict[str, dataclasses.Field[object]]:
        return self.found

    @functools.cached_property
    def found(self) -> dict[str, dataclasses.Field[object]]:
        """All fields, including those of its bases."""
        (pattern,) = dataclasses.fields(self._sample)
        fields: dict[str, dataclasses.Field[object]] = {}
        for base in self.cls.__mro__[-2:0:-1]:
            fields.update(getattr(base, "__dataclass_fields__", {}))
        for name, kind in self.types.items():
            value = self.given.get(name, dataclasses.MISSING)
            field: Any = value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
            field.name, field.type = name, kind
            field._field_type = pattern._field_type  # type: ignore[attr-defined]  # by which one is recognized
            fields[name] = field
            if field.kw_only is dataclasses.MISSING:
                field.kw_only = pattern.kw_only
        return fields

    @functools.cached_property
    def shown(self) -> tuple[str, ...]:
        """Names of those that `repr` shows."""
        return tuple(field.name for field in self.found.values() if field.repr)

    @functools.cached_property
    def values(self) -> Callable[[object], object]:
        """Returns, for an object, the values that make it equal to others."""
        names = tuple(field.name for field in self.found.values() if field.compare)
        if len(names) == 1:
            (name,) = names
            return lambda one: (getattr(one, name),)
        return operator.attrgetter(*names) if names else lambda _one: ()


class _MatchArgs:
    """The `__match_args__` of a dataclass."""

    def __init__(self, fields: _Fields) -> None:
        self._fields = fields

    def __get__(self, instance: object, owner: type) -> tuple[str, ...]:
        return tuple(one.name for one in self._fields.found.values() if one.init and not one.kw_only)


class _Init:
    """The `__init__` of a dataclass until its first use, which replaces it by a function."""

    def __init__(self, fields: _Fields, *, frozen: bool) -> None:
        self._fields = fields
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> object:
        return self.compile().__get__(instance, owner)

    def compile(self) -> FunctionType:
        """Compile the function, and put it into the class."""
        function = _init(self._fields.cls, frozen=self._frozen)
        setattr(self._fields.cls, "__init__", function)  # noqa: B010 mypy rejects the assignment
        return function

    @property
    def is_used(self) -> bool:
        """Whether it has been replaced."""
        return vars(self._fields.cls).get("__init__") is not self


_waiting: list[_Init] = []


def compile_next() -> bool:
    """Compile the `__init__` of another dataclass, for processes that are about to be forked; False if none is left."""
    while _waiting:
        initial = _waiting.pop()
        if not initial.is_used:
            initial.compile()
            return True
    return False


def hints_of(cls: type) -> dict[str, object]:
    """Return the types in the annotations of *cls* and its bases, by name, as `typing.get_type_hints`.

    It costs a third: the annotations of a class are compiled together. All must be text, as
    ``from __future__ import annotations`` makes them, and the names in them names of their module.
    """
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        texts = vars(base).get("__annotations__", {})
        if texts:
            kinds = eval(f"({','.join(texts.values())},)", vars(sys.modules[base.__module__]))
            for name, kind in zip(texts, kinds, strict=True):
                hints[name] = kind.__origin__ if hasattr(kind, "__metadata__") else kind  # of `Annotated`
    return hints


def _init(cls: type, *, frozen: bool) -> FunctionType:
    """Make the `__init__` of *cls*, of the code for all classes of its shape and its own names."""
    fields = dataclasses.fields(cls)
    names = {field.name for field in fields}
    sources = [_source_of(field) for field in fields]
    shape = [(field.init, bool(field.kw_only), source) for field, source in zip(fields, sources, strict=True)]
    code = _compiled(tuple(shape), frozen=frozen, has_post_init=hasattr(cls, "__post_init__"))
    own = {"_own": "self" if "self" not in names else "_own"}
    own |= {f"_{number}": field.name for number, field in enumerate(fields)}
    scope: dict[str, object] = {"_set": object.__setattr__, "_none": dataclasses.MISSING}
    defaults: dict[bool, dict[str, object]] = {False: {}, True: {}}
    for number, (field, source) in enumerate(zip(fields, sources, strict=True)):
        if source == "factory":
            scope[f"_make{number}"] = field.default_factory
        elif source == "default" and not field.init:
            scope[f"_default{number}"] = field.default
        if source and field.init:
            defaults[bool(field.kw_only)][field.name] = dataclasses.MISSING if source == "factory" else field.default
    code = code.replace(
        co_varnames=tuple(own.get(name, name) for name in code.co_varnames),
        co_names=tuple(own.get(name, name) for name in code.co_names),
        co_consts=tuple(own.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
        co_filename=f"<dataclass {cls.__qualname__}>",
    )
    made = FunctionType(code, scope, "__init__", tuple(defaults[False].values()))
    made.__kwdefaults__ = defaults[True]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**{field.name: field.type for field in fields if field.init}, "return": None}
    return made


def _source_of(field: dataclasses.Field[object]) -> str:
    """Where the value of a field is from that the caller does not give: ``default``, ``factory``, or empty."""
    if field.default_factory is not dataclasses.MISSING:
        return "factory"
    return "default" if field.default is not dataclasses.MISSING else ""


@functools.cache
def _compiled(shape: tuple[tuple[bool, bool, str], ...], *, frozen: bool, has_post_init: bool) -> CodeType:
    """Compile an `__init__` with the field names ``_0``, ``_1`` and so on, and ``_own`` for the object.

    A process makes objects of a hundred classes as it starts, of a third as many shapes.

    Args:
        shape: of each field whether it is a parameter, whether by keyword only, and `_source_of` it.
    """
    parameters, by_keyword, lines = ["_own"], ["*"], []
    for number, (init, kw_only, source) in enumerate(shape):
        value = f"_{number}"
        if init:
            (by_keyword if kw_only else parameters).append(value)
        if source == "factory":
            value = f"_make{number}()" + (f" if {value} is _none else {value}" if init else "")
        elif source and not init:
            value = f"_default{number}"
        if init or source:
            lines.append(f"_set(_own, '_{number}', {value})" if frozen else f"_own._{number} = {value}")
    if has_post_init:
        lines.append("_own.__post_init__()")
    head = ", ".join([*parameters, *(by_keyword if len(by_keyword) > 1 else ())])
    # Not executed, as text: that makes Python forget that a KeyboardInterrupt ends the program, which then exits with 1
    # instead of 130.
    module = compile("\n ".join([f"def __init__({head}):", *(lines or ["pass"])]), "<dataclass>", "exec")
    return next(value for value in module.co_consts if isinstance(value, CodeType))


def _repr(fields: _Fields) -> Callable[[object], str]:
    @recursive_repr()
    def shown(self: object) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields.shown)
        return f"{type(self).__qualname__}({inner})"

    return shown


def _eq(fields: _Fields) -> Callable[[object, object], object]:
    values: Callable[[object], object] | None = None  # kept here: to ask for it each time costs a sixth more

    def equal(self: object, other: object) -> object:
        nonlocal values
        if values is None:
            values = fields.values
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return equal


def _hash(fields: _Fields) -> Callable[[object], int]:
    values: Callable[[object], object] | None = None  # likewise

    def hashed(self: object) -> int:
        nonlocal values
        if values is None:
            values = fields.values
        return hash(values(self))

    return hashed


def _refusals(
    fields: _Fields,
) -> tuple[Callable[[object, str, object], None], Callable[[object, str], None]]:
    def refuse_set(self: object, name: str, value: object) -> None:
        if type(self) is fields.cls or name in fields.found:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def refuse_delete(self: object, name: str) -> None:
        if type(self) is fields.cls or name in fields.found:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    return refuse_set, refuse_delete


def _state(
    fields: _Fields,
) -> tuple[Callable[[object], list[object]], Callable[[object, list[object]], None]]:
    def state_of(self: object) -> list[object]:
        return [getattr(self, name) for name in fields.found]

    def restore(self: object, state: list[object]) -> None:
        for name, value in zip(fields.found, state, strict=False):
            object.__setattr__(self, name, value)

    return state_of, restore
