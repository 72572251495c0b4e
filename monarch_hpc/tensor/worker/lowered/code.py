"""Compiles instructions to straight-line Python code over slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from monarch_hpc.tensor.worker.lowered.trace import Call, Draw, Instruction, TensorSlot, WriteNote

__all__ = ["Code", "CodeWriter", "compile_code", "made_by", "slots_in", "used_by"]

Code = Callable[[list[Any], Any], None]
"""Runs operators on slots, and tells the other argument of writes and draws: `save`, `begin_draw`, `end_draw`."""


def compile_code(instructions: Sequence[Instruction], drops: Collection[int]) -> Code:
    """Code of instructions.

    Args:
        drops: slots that nobody needs after their last use here.
    """
    writer = CodeWriter()
    writer.add(instructions, drops)
    return writer.code()


class CodeWriter:
    """Writes code, line by line: the slots are ``S``, the other argument is ``X``."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._lines: list[str] = []

    def line(self, text: str) -> None:
        """Add a line."""
        self._lines.append(text)

    def add(self, instructions: Sequence[Instruction], drops: Collection[int]) -> None:
        """Add instructions; see `compile_code`."""
        last: dict[int, int] = {}
        for at, instruction in enumerate(instructions):
            for slot in (*used_by((instruction,)), *made_by((instruction,))):
                last[slot] = at
        for at, instruction in enumerate(instructions):
            self.line(self._line(instruction))
            dead = [f"S[{slot}]" for slot, end in last.items() if end == at and slot in drops]
            if dead:
                self.line(f"{'='.join(dead)}=None")

    def code(self) -> Code:
        """The code that was written."""
        names = self._names
        exec("def run(S,X):\n " + "\n ".join(self._lines or ["pass"]), names)  # of numbers and names of ours alone
        run: Code = names["run"]
        return run

    def named(self, one: Any) -> str:
        """A name for an object."""
        name = f"c{len(self._names)}"
        self._names[name] = one
        return name

    def _line(self, instruction: Instruction) -> str:
        if isinstance(instruction, WriteNote):
            return f"X.save({','.join(f'S[{slot}]' for slot in instruction.slots)})"
        if isinstance(instruction, Draw):
            return "X.begin_draw()" if instruction.begins else "X.end_draw()"
        given = [self._expression(arg) for arg in instruction.args]
        given += [f"{name}={self._expression(arg)}" for name, arg in instruction.kwargs.items()]
        op = getattr(instruction.op, "_op", instruction.op)  # which is all that its `__call__` calls
        call = f"{self.named(op)}({','.join(given)})"
        outs = ["_" if slot is None else f"S[{slot}]" for slot in instruction.outs]
        if all(slot is None for slot in instruction.outs):
            return call
        return f"{','.join(outs)}{',' if instruction.is_many else ''}={call}"

    def _expression(self, arg: Any) -> str:
        if isinstance(arg, TensorSlot):
            return f"S[{arg.number}]"
        if isinstance(arg, list):
            return f"[{','.join(self._expression(item) for item in arg)}]"
        if isinstance(arg, tuple):
            return f"({''.join(self._expression(item) + ',' for item in arg)})"
        if arg is None or type(arg) in (bool, int):
            return repr(arg)
        return self.named(arg)


def slots_in(arg: Any) -> Iterator[int]:
    """The slots in an argument."""
    if isinstance(arg, TensorSlot):
        yield arg.number
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from slots_in(item)


def used_by(instructions: Iterable[Instruction]) -> Iterator[int]:
    """The slots that instructions use."""
    for one in instructions:
        if isinstance(one, WriteNote):
            yield from one.slots
        elif isinstance(one, Call):
            yield from slots_in(list(one.args))
            yield from slots_in(list(one.kwargs.values()))


def made_by(instructions: Iterable[Instruction]) -> Iterator[int]:
    """The slots that they fill."""
    for one in instructions:
        if isinstance(one, Call):
            yield from (slot for slot in one.outs if slot is not None)
