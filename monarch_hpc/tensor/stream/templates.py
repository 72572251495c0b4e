"""Templates: descriptions of operations, which records refer to by number, and which ranks have got them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from monarch_hpc.tensor.stream.records import FIRST_TEMPLATE, ProgramSpec

__all__ = ["TemplateTable"]


class TemplateTable:
    """The templates of one engine, whose lock the caller holds."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._specs: dict[int, Any] = {}
        self._known: dict[int, set[int]] = {}
        self._new: list[tuple[int, Any]] = []
        self._next = FIRST_TEMPLATE

    def define(self, key: Any, make: Callable[[], Any]) -> int:
        """The number of a template, which no rank has at first.

        Args:
            key: equal for equal templates.
            make: makes it, the first time.
        """
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            self._specs[number] = make()
        return number

    def introduce(self, number: int, ranks: Collection[int]) -> None:
        """Send a template to ranks that have not got it."""
        known = self._known.setdefault(number, set())
        if not known.issuperset(ranks):
            known.update(ranks)
            self._new.append((number, self._specs[number]))

    def take_new(self) -> tuple[tuple[int, Any], ...]:
        """The templates that leave with the next frame."""
        new, self._new = self._new, []
        return tuple(new)

    def spec_of(self, number: int) -> Any:
        """The template with a number."""
        return self._specs[number]

    def all(self) -> list[tuple[int, Any]]:
        """All with their numbers."""
        return list(self._specs.items())

    def replace(self, key: Any, number: int, spec: Any) -> None:
        """Give a template another key, and another content, which the ranks have got."""
        self._numbers = {one: at for one, at in self._numbers.items() if at != number}
        self._numbers[key] = number
        self._specs[number] = spec

    def forget(self, key: Any) -> None:
        """Forget a template that no later record uses."""
        number = self._numbers.pop(key)
        del self._specs[number]
        self._known.pop(number, None)

    def specs(self) -> dict[int, Any]:
        """All by number but captured steps, which end here; those that were not sent yet need not be."""
        for key in [key for key, number in self._numbers.items() if isinstance(self._specs[number], ProgramSpec)]:
            self.forget(key)
        self._new = []
        return dict(self._specs)
