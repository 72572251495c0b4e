"""Compiles instructions to straight-line Python code over slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from monarch_hpc.tensor.worker.lowered.trace import Call, Draw, Instruction, TensorSlot, WriteNote

__all__ = ["Code", "compile_code", "made_by", "slots_in", "used_by"]

Code = Callable[[list[Any], Any], None]
"""Runs operators on slots, and tells the other argument of writes and draws: `save`, `begin_draw`, `end_draw`."""


def compile_code(instructions: Sequence[Instruction], drops: Collection[int]) -> Code:
    """Code of instructions.

    Args:
        drops: slots that nobody needs after their last use here.
    """
    names: dict[str, Any] = {}
    last: dict[int, int] = {}
    for at, instruction in enumerate(instructions):
        for slot in (*used_by((instruction,)), *made_by((instruction,))):
            last[slot] = at
    lines = []
    for at, instruction in enumerate(instructions):
        lines.append(_line(instruction, names))
        dead = [f"S[{slot}]" for slot, end in last.items() if end == at and slot in drops]
        if dead:
            lines.append(f"{'='.join(dead)}=None")
    exec("def run(S,X):\n " + "\n ".join(lines or ["pass"]), names)  # made of numbers and names of ours alone
    run: Code = names["run"]
    return run


def _line(instruction: Instruction, names: dict[str, Any]) -> str:
    if isinstance(instruction, WriteNote):
        return f"X.save({','.join(f'S[{slot}]' for slot in instruction.slots)})"
    if isinstance(instruction, Draw):
        return "X.begin_draw()" if instruction.begins else "X.end_draw()"
    given = [_expression(arg, names) for arg in instruction.args]
    given += [f"{name}={_expression(arg, names)}" for name, arg in instruction.kwargs.items()]
    call = f"{_named(instruction.op, names)}({','.join(given)})"
    outs = ["_" if slot is None else f"S[{slot}]" for slot in instruction.outs]
    if all(slot is None for slot in instruction.outs):
        return call
    return f"{','.join(outs)}{',' if instruction.is_many else ''}={call}"


def _expression(arg: Any, names: dict[str, Any]) -> str:
    if isinstance(arg, TensorSlot):
        return f"S[{arg.number}]"
    if isinstance(arg, list):
        return f"[{','.join(_expression(item, names) for item in arg)}]"
    if isinstance(arg, tuple):
        return f"({''.join(_expression(item, names) + ',' for item in arg)})"
    if arg is None or type(arg) in (bool, int):
        return repr(arg)
    return _named(arg, names)


def _named(one: Any, names: dict[str, Any]) -> str:
    name = f"c{len(names)}"
    names[name] = one
    return name


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
