"""`@endpoint`: the methods that it marks, and the mistakes that it refuses before anything is sent."""

from __future__ import annotations

import pytest

from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint, endpoints_of


class Base(Actor):
    @endpoint
    def one(self, x: int, y: int = 2, *, z: int = 3) -> int:
        """Add."""
        return x + y + z

    @endpoint
    def two(self) -> None: ...

    def hidden(self) -> None: ...


class Derived(Base):
    @endpoint
    async def three(self, *numbers: int) -> int:
        return sum(numbers)

    def two(self) -> None:
        """Overrides an endpoint by a plain method."""


def test_endpoints_are_found_with_those_of_the_bases() -> None:
    assert sorted(endpoints_of(Base)) == ["one", "two"]
    assert sorted(endpoints_of(Derived)) == ["one", "three"]
    assert endpoints_of(Derived)["three"].is_async and not endpoints_of(Derived)["one"].is_async


def test_inside_the_actor_an_endpoint_is_a_method() -> None:
    assert Derived().one(1, z=0) == 3
    assert Base.one.__doc__ == "Add."


@pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), ((1, 2), {}), ((1,), {"z": 1}), ((), {"x": 1})])
def test_arguments_that_fit_pass(args: tuple[int, ...], kwargs: dict[str, object]) -> None:
    for _ in range(2):
        Base.one.check(args, kwargs)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"w": 1})])
def test_arguments_that_do_not_fit_are_refused_with_the_signature(
    args: tuple[int, ...], kwargs: dict[str, object]
) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^one\(self, x: 'int', y: 'int' = 2, \*, z: 'int' = 3\)"):
            Base.one.check(args, kwargs)


def test_only_functions_are_marked() -> None:
    with pytest.raises(TypeError, match="@endpoint marks methods"):
        endpoint(3)  # type: ignore[call-overload]


def test_what_an_endpoint_is_marked_with_is_kept() -> None:
    class Marked(Actor):
        @endpoint(timeout=2.5)
        def slow(self) -> None: ...

        @concurrent_endpoint
        async def wait(self) -> None: ...

        @concurrent_endpoint(timeout=1.0)
        async def wait_in_time(self) -> None: ...

    assert (Marked.slow.timeout_s, Marked.slow.concurrent, Marked.slow.plain) == (2.5, False, False)
    assert (Marked.wait.timeout_s, Marked.wait.concurrent, Marked.wait.plain) == (None, True, False)
    assert (Marked.wait_in_time.timeout_s, Marked.wait_in_time.concurrent) == (1.0, True)
    assert Base.one.plain


def test_marks_that_cannot_work_are_refused() -> None:
    with pytest.raises(TypeError, match="endpoint blocks is concurrent: write it as 'async def'"):

        @concurrent_endpoint
        def blocks(self: object) -> None: ...

    with pytest.raises(ValueError, match="the timeout of endpoint hurries is 0 s"):

        @endpoint(timeout=0)
        def hurries(self: object) -> None: ...
