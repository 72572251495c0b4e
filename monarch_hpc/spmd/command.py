"""Reads torchrun's command line: the script, and the numbers of hosts and of ranks on each."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TorchrunCommand", "parse_torchrun"]

_STARTERS = ("torchrun", "torch.distributed.run")
_PYTHONS = ("python", "python3")
_FLAGS = {"--standalone", "--run-path", "--no-python", "-m", "--module"}
"""Options without a value; every other option of torchrun has one."""
_REFUSED = {"--no-python", "--run-path"}
_DEVICES = ("auto", "gpu", "cpu", "xpu")


@dataclass(frozen=True, slots=True)
class TorchrunCommand:
    """A command line of torchrun.

    Attributes:
        script: the path of the script, or ``-m`` and a module; then its arguments.
        num_hosts: number of hosts.
        per_host: number of ranks on each host.
    """

    script: tuple[str, ...]
    num_hosts: int
    per_host: int


def parse_torchrun(words: Sequence[str]) -> TorchrunCommand:
    """Parse ``torchrun ...``, ``python -m torch.distributed.run ...`` or ``python SCRIPT ...``, which is a single rank.

    Options of the rendezvous are ignored: the hosts are those of the job, and the first one serves the rendezvous.

    Raises:
        ValueError: the command is not of one of these forms, has no script, or an option cannot be honoured.
    """
    first, *left = words or [""]
    if first in _PYTHONS:
        if left[:1] != ["-m"] or left[1:2] == [] or left[1] not in _STARTERS:
            return _command(left, 1, 1)
        left = left[2:]
    elif first not in _STARTERS:
        raise ValueError(f"{first!r} is not a command of torchrun: begin with {', '.join((*_STARTERS, *_PYTHONS))}")
    given: dict[str, str] = {}
    while left and left[0].startswith("-"):
        option, has_value, value = left.pop(0).partition("=")
        option = option.replace("_", "-")
        if option in _REFUSED:
            raise ValueError(f"{option} is not supported: the ranks are Python programs")
        if option not in _FLAGS and not has_value:
            if not left:
                raise ValueError(f"{option} lacks its value")
            value = left.pop(0)
        given[option] = value
    module = ["-m"] if given.keys() & {"-m", "--module"} else []
    hosts, ranks = given.get("--nnodes", "1"), given.get("--nproc-per-node", "1")
    return _command([*module, *left], _number("--nnodes", hosts), _number("--nproc-per-node", ranks))


def _command(script: Sequence[str], num_hosts: int, per_host: int) -> TorchrunCommand:
    if not script or script == ["-m"]:
        raise ValueError("the command names no script: give its path, or -m and a module")
    return TorchrunCommand(tuple(script), num_hosts, per_host)


def _number(option: str, text: str) -> int:
    low, _, high = text.partition(":")
    if text in _DEVICES:
        raise ValueError(f"{option}={text} depends on the machine that reads it: give a number")
    if (high and high != low) or not low.isdecimal() or int(low) < 1:
        raise ValueError(f"{option}={text} is not a fixed number of at least 1")
    return int(low)
