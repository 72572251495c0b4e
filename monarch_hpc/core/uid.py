"""Names of processes as Monarch programs write them: ``service``, ``service<kv5xUjSXmBR>``, ``<kv5xUjSXmBR>``."""

from __future__ import annotations

import os
import re
from typing import Self

from monarch_hpc.core.dataclass import dataclass

__all__ = ["ProcId", "Uid"]

_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
"""Base 58: without 0, O, I and l, which are easily confused."""

_LABEL = r"[A-Za-z][A-Za-z0-9_-]*"
_FORM = re.compile(rf"({_LABEL})?(?:<([{_DIGITS}]+)>)?")
_END = 1 << 64


@dataclass(frozen=True, slots=True)
class Uid:
    """A label, a 64-bit number, or both.

    Attributes:
        label: readable name; without a number it names a singleton.
        instance_value: distinguishes instances with the same label; None for a singleton.
    """

    label: str | None
    instance_value: int | None

    def __post_init__(self) -> None:
        if self.label is not None and not re.fullmatch(_LABEL, self.label):
            raise ValueError(f"label {self.label!r} must begin with a letter and go on with letters, digits, _ or -")
        if self.instance_value is None and self.label is None:
            raise ValueError("a Uid needs a label, a number, or both")
        if self.instance_value is not None and not 0 <= self.instance_value < _END:
            raise ValueError(f"number {self.instance_value} of a Uid has more than 64 bits")

    @classmethod
    def anonymous(cls) -> Self:
        """A new `Uid` with a random number and no label."""
        return cls.instance()

    @classmethod
    def instance(cls, label: str | None = None) -> Self:
        """A new `Uid` with a random number."""
        return cls(label, int.from_bytes(os.urandom(8), "little"))

    @classmethod
    def instance_from_value(cls, value: int, label: str | None = None) -> Self:
        """The `Uid` with this number."""
        return cls(label, value)

    @classmethod
    def from_string(cls, uid: str) -> Self:
        """Parse the output of `str`.

        Raises:
            ValueError: *uid* is not a valid name.
        """
        match = _FORM.fullmatch(uid)
        if match is None or not uid:
            raise ValueError(f"{uid!r} is not a Uid: write label, label<number> or <number>, the number in base 58")
        return cls(match[1], None if match[2] is None else _parse_base58(match[2]))

    @property
    def is_instance(self) -> bool:
        """Whether this `Uid` has a number."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether this `Uid` is a label without a number."""
        return self.instance_value is None

    def __str__(self) -> str:
        number = "" if self.instance_value is None else f"<{_render_base58(self.instance_value)}>"
        return f"{self.label or ''}{number}"


@dataclass(frozen=True, slots=True)
class ProcId:
    """The identity of a process."""

    uid: Uid

    @classmethod
    def from_string(cls, proc_id: str) -> Self:
        """Parse the output of `str`.

        Raises:
            ValueError: *proc_id* is not a valid name.
        """
        return cls(Uid.from_string(proc_id))

    @property
    def label(self) -> str | None:
        """The label of the `Uid`."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)


def _render_base58(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def _parse_base58(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return number
