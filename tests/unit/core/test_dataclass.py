"""Our dataclasses behave as those of the standard library, and compile nothing before their first use."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import inspect
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, Literal, get_type_hints

import pytest

from monarch_hpc.core.dataclass import compile_next, dataclass, hints_of


@dataclass(frozen=True, slots=True)
class _Point:
    """Has a docstring, as all of ours."""

    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)


@dataclass(slots=True)
class _Entry:
    """Not frozen, and so without a hash."""

    name: str
    size: int = field(init=False)
    state: str = field(init=False, default="new")

    def __post_init__(self) -> None:
        self.size = len(self.name)


@dataclass(frozen=True)
class _Base:
    """A base class."""

    first: int

    def __repr__(self) -> str:
        return "own words"


@dataclass(frozen=True)
class _Derived(_Base):
    """Adds a field to its base's."""

    second: int = 2

    def __hash__(self) -> int:
        return 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keywords:
    """Its fields are given by name."""

    one: int
    two: int = 2


@dataclass(slots=True, eq=False)
class _Identity:
    """Is equal to itself only."""

    value: int


def _both(make: Callable[[Callable[..., type]], type]) -> tuple[type, type]:
    return make(dataclass), make(dataclasses.dataclass)


def test_like_the_standard_library() -> None:
    def make(decorate: Callable[..., type]) -> type:
        class Item:
            """One item."""

            name: str
            size: int = 3
            parts: list[int] = field(default_factory=list)

        made: type = decorate(frozen=True, slots=True)(Item)
        return made

    ours, theirs = _both(make)
    assert inspect.signature(ours).parameters.keys() == inspect.signature(theirs).parameters.keys()
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert ours.__slots__ == theirs.__slots__  # type: ignore[attr-defined]
    ours_one, theirs_one = ours("a", parts=[1]), theirs("a", parts=[1])
    assert repr(ours_one) == repr(theirs_one)
    assert dataclasses.asdict(ours_one) == dataclasses.asdict(theirs_one)
    for wrong in ({}, {"name": "a", "colour": 1}):
        with pytest.raises(TypeError) as our_error:
            ours(**wrong)
        with pytest.raises(TypeError) as their_error:
            theirs(**wrong)
        assert str(our_error.value) == str(their_error.value)


def test_values() -> None:
    one = _Point(1, tags=["a"], secret="s")
    assert one == _Point(1, tags=["b"], secret="s") != _Point(2, secret="s")
    another: object = (1, 0.5, "s")
    assert one != another
    assert hash(one) == hash(_Point(1, secret="s"))
    assert repr(one) == "_Point(x=1, y=0.5, tags=['a'])"
    assert _Point(1).tags is not _Point(1).tags
    assert dataclasses.replace(one, x=3) == _Point(3, secret="s")
    match one:
        case _Point(1, y):
            assert y == 0.5
        case _:
            pytest.fail("no match")
    assert not hasattr(one, "__dict__")


def test_frozen() -> None:
    one = _Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        _Derived(1).first = 2  # type: ignore[misc]


@pytest.mark.parametrize("one", [_Point(1, 2.5, ["a"], "s"), _Entry("ab"), _Derived(1), _Keywords(one=1)])
def test_copies(one: object) -> None:
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.copy(one) == one
    assert copy.deepcopy(one) == one


def test_own_methods_stay() -> None:
    assert repr(_Base(1)) == "own words"
    assert repr(_Derived(1)) == "_Derived(first=1, second=2)"
    assert hash(_Derived(1)) == 7
    assert _Derived(1) == _Derived(1, 2) != _Base(1)
    assert _Identity(1) != _Identity(1)
    assert len({_Identity(1), _Identity(1)}) == 2
    assert _Entry("abc").size == 3
    assert _Entry("abc").state == "new"
    with pytest.raises(TypeError, match="unhashable"):
        hash(_Entry("abc"))
    with pytest.raises(TypeError):
        _Keywords(1)  # type: ignore[call-arg]


def test_what_waits_can_be_compiled_ahead() -> None:
    @dataclass
    class Ahead:
        """Made in this test."""

        value: int

    @dataclass(init=False)
    class Own:
        """Has its own."""

        value: int

        def __init__(self) -> None:
            self.value = 1

    while compile_next():
        pass
    assert inspect.isfunction(vars(Ahead)["__init__"])
    assert (Ahead(2).value, Own().value) == (2, 1)


def test_users_derive_from_them() -> None:
    @dataclasses.dataclass(frozen=True)
    class Named(_Base):
        """A user's class."""

        name: str = "n"

    assert Named(1) == Named(1, "n")
    assert repr(Named(1)).endswith("Named(first=1, name='n')")
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Free", (_Base,), {}))


def test_nothing_is_compiled_to_derive_from_a_frozen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    execute = builtins.exec

    def note(text: str, *given: Any) -> None:
        texts.append(text)
        execute(text, *given)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.exec", note)

        @dataclass(frozen=True, slots=True)
        class Derived(_Point):
            """Made in this test."""

            z: int = 0

    # From Python 3.13 on the standard library compiles a function around all methods, of which there are none.
    assert all(text.count("def ") == 1 for text in texts)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Derived(1).z = 1  # type: ignore[misc]
    assert Derived(1, z=2) == Derived(1, z=2)
    assert _Point.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_one_that_is_not_frozen_is_not_derived_from_one_that_is() -> None:
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclass(type("Free", (_Point,), {}))


def test_init_is_compiled_at_its_first_use() -> None:
    @dataclass(slots=True)
    class Late:
        """Made in this test."""

        value: int

    class Child(Late):
        """Uses its base's."""

    assert not inspect.isfunction(vars(Late)["__init__"])
    assert Child(3).value == 3
    assert inspect.isfunction(vars(Late)["__init__"])
    assert "__init__" not in vars(Child)


@pytest.mark.slow  # starts an interpreter
def test_a_first_use_at_exit_does_not_change_the_exit_code() -> None:
    program = (
        "import atexit\n"
        "from monarch_hpc.core.dataclass import dataclass\n"
        "@dataclass\n"
        "class Late:\n"
        "    value: int\n"
        "atexit.register(Late, 1)\n"
        "raise KeyboardInterrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGINT


def test_fields_are_collected_at_their_first_use() -> None:
    @dataclass(frozen=True, slots=True)
    class Late(_Point):
        """Made in this test."""

        z: list[int] = field(default_factory=list)

    @dataclass
    class Plain:
        """Has attributes where others have slots."""

        one: int = field(default=1)
        many: list[int] = field(default_factory=list)

    assert "found" not in vars(vars(Late)["__dataclass_fields__"])
    assert [one.name for one in dataclasses.fields(Late)] == ["x", "y", "tags", "secret", "z"]
    assert vars(Late)["__slots__"] == ("z",)
    assert Late(1, z=[2]).z == [2]
    assert (Plain.one, Plain().many, hasattr(Plain, "many")) == (1, [], False)


@pytest.mark.parametrize("annotation", ["ClassVar[int]", "dataclasses.InitVar[int]"])
def test_what_is_no_field_is_refused(annotation: str) -> None:
    with pytest.raises(TypeError, match="ClassVar"):
        dataclass(type("Odd", (), {"__annotations__": {"one": annotation}, "__qualname__": "Odd"}))


def test_a_mutable_default_is_refused() -> None:
    with pytest.raises(ValueError, match="use default_factory"):
        dataclass(type("Shared", (), {"__annotations__": {"one": "list[int]"}, "one": []}))


class _Kinds(_Base):
    """Annotations of all kinds that the configuration and the messages have."""

    literal: tuple[Literal["a", "b,c"], ...]
    maybe: int | None
    place: list[_Point]
    told: Annotated[str, "in words"]


@pytest.mark.parametrize("cls", [_Point, _Entry, _Derived, _Kinds, object])
def test_hints_are_those_of_the_standard_library(cls: type) -> None:
    assert hints_of(cls) == get_type_hints(cls)
    assert list(hints_of(cls)) == list(get_type_hints(cls))


def test_classes_of_one_shape_keep_their_own_names_and_defaults() -> None:
    @dataclass(frozen=True, slots=True)
    class One:
        """With a field of its own name."""

        self: int
        other: str = "one"
        more: list[int] = field(default_factory=lambda: [1])

    @dataclass(frozen=True, slots=True)
    class Two:
        """The same shape."""

        first: int
        second: str = "two"
        third: list[int] = field(default_factory=lambda: [2])

    assert (One(1), One(self=1, more=[3])) == (One(1, "one", [1]), One(1, "one", [3]))
    assert repr(Two(second="x", first=2)).endswith("Two(first=2, second='x', third=[2])")
    assert str(inspect.signature(Two)).startswith("(first: 'int', second: 'str' = 'two', third: ")
    with pytest.raises(TypeError, match=r"Two\.__init__\(\) .*'first'"):
        Two()  # type: ignore[call-arg]
