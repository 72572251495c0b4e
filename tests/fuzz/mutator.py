"""Generates almost valid inputs: known ones with the changes that parsers trip over."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

__all__ = ["MAX_INPUT_BYTES", "Mutator"]

MAX_INPUT_BYTES = 48 * 1024
"""Less than a pipe or a socket takes at once, so that an input can be written before it is read."""

_EDGES = [0, 1, 2, 7, 8, 15, 16, 17, 23, 24, 25, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536]
_EDGES += [2**20 + step for step in (-1, 0, 1, 15, 16, 17)]
_EDGES += [2**26, 2**26 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 16, 2**64 - 1]

_TEXTS = [b"[", b"{", b'"', b"\\u0000", b"\\ud800", b"\xff", b"\0", b"null", b"NaN", b"1e999", b"-0", b"9" * 5000]
_TEXTS += [b"tcp://[::1]:1", b"tcp://127.0.0.1:0", b"tcp://fe80::1%x", b"://", b"%", b":", b"@", b"\r\n"]


class Mutator:
    """Makes inputs from inputs.

    Args:
        dice: the only source of randomness: the same seed gives the same inputs.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._changes: list[Callable[[bytearray, Sequence[bytes]], None]] = [
            self._flip,
            self._set,
            self._number,
            self._number,
            self._step,
            self._cut,
            self._double,
            self._insert,
            self._splice,
            self._truncate,
            self._text,
            self._nest,
        ]

    def mutate(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """Change *data* in one to five ways; parts of *others* may be spliced in."""
        changed = bytearray(data)
        for _ in range(self._dice.randint(1, 5)):
            self._dice.choice(self._changes)(changed, others)
        return bytes(changed[:MAX_INPUT_BYTES])

    def _at(self, data: bytearray) -> int:
        return self._dice.randint(0, len(data))

    def _span(self, data: bytearray) -> tuple[int, int]:
        start = self._at(data)
        return start, min(len(data), start + self._dice.choice((1, 2, 4, 8, 16, 24, 40, 200)))

    def _flip(self, data: bytearray, _others: Sequence[bytes]) -> None:
        if data:
            data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)

    def _set(self, data: bytearray, _others: Sequence[bytes]) -> None:
        if data:
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)

    def _number(self, data: bytearray, _others: Sequence[bytes]) -> None:
        size = self._dice.choice((1, 2, 4, 8))
        at = self._at(data)
        if self._dice.random() < 0.7:
            at &= ~3  # numbers are aligned
        data[at : at + size] = (self._dice.choice(_EDGES) % 256**size).to_bytes(size, "little")

    def _step(self, data: bytearray, _others: Sequence[bytes]) -> None:
        size = self._dice.choice((1, 2, 4, 8))
        at = self._at(data)
        number = int.from_bytes(data[at : at + size], "little") + self._dice.randint(-20, 20)
        data[at : at + size] = (number % 256**size).to_bytes(size, "little")

    def _cut(self, data: bytearray, _others: Sequence[bytes]) -> None:
        start, end = self._span(data)
        del data[start:end]

    def _double(self, data: bytearray, _others: Sequence[bytes]) -> None:
        start, end = self._span(data)
        at = self._at(data)
        data[at:at] = data[start:end] * self._dice.choice((1, 1, 2, 30))

    def _insert(self, data: bytearray, _others: Sequence[bytes]) -> None:
        at = self._at(data)
        data[at:at] = self._dice.randbytes(self._dice.choice((1, 2, 4, 8, 16, 100)))

    def _splice(self, data: bytearray, others: Sequence[bytes]) -> None:
        other = self._dice.choice(others)
        start = self._dice.randint(0, len(other))
        data[self._at(data) :] = other[start:]

    def _truncate(self, data: bytearray, _others: Sequence[bytes]) -> None:
        del data[self._at(data) :]

    def _text(self, data: bytearray, _others: Sequence[bytes]) -> None:
        numbers = [match.span() for match in re.finditer(rb"\d+", data[:4096])]
        start, end = self._dice.choice(numbers) if numbers and self._dice.random() < 0.5 else self._span(data)
        data[start:end] = self._dice.choice(_TEXTS)

    def _nest(self, data: bytearray, _others: Sequence[bytes]) -> None:
        at = self._at(data)
        data[at:at] = self._dice.choice((b"[", b'{"a":', b'["')) * self._dice.choice((3, 100, 20_000))
