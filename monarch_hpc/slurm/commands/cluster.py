"""Parses what Slurm's commands print of the cluster: partitions, nodes, reservations, its configuration."""

from __future__ import annotations

import re

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SlurmParseError
from monarch_hpc.slurm.commands.fields import fields_of, something

__all__ = [
    "NodeState",
    "Partition",
    "Reservation",
    "parse_free_nodes",
    "parse_kill_wait",
    "parse_leaves",
    "parse_partitions",
    "parse_show_nodes",
    "parse_show_partitions",
    "parse_show_reservations",
]

_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+) sec", re.MULTILINE)

# States of nodes that a job in the reservation can have at once. A suffix, such as in idle*, marks a node that cannot.
_FREE = frozenset({"idle", "reserved", "planned", "maint"})


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation: its name, its window as Slurm prints it, who may use it, and its nodes.

    *users*, *groups* and *accounts* are Slurm's lists, in which ``-`` marks those who may not; empty for no list.
    """

    name: str
    start: str
    end: str
    state: str
    users: str
    accounts: str
    groups: str = ""
    nodes: str = ""
    num_nodes: int = 0
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: the limits of each job as Slurm prints them, ``UNLIMITED`` for none."""

    name: str
    default: bool
    state: str
    max_time: str
    max_hosts: str
    num_hosts: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: its state as Slurm prints it, ``ALLOCATED+DRAIN``, and the administrators' reason for it, if any."""

    name: str
    state: str
    reason: str

    @property
    def failed(self) -> bool:
        """Whether Slurm says that the node does not work, or does not answer; a drained node works."""
        words = {word.strip("*~#!%$@^-") for word in self.state.split("+")}
        return "*" in self.state or bool(words & {"DOWN", "FAIL", "FAILED", "ERROR", "NOT_RESPONDING"})

    @property
    def usable(self) -> bool:
        """Whether Slurm lets jobs run there. Slurm marks a node that does not respond with a star."""
        words = {word.strip("*~#!%$@^-") for word in self.state.split("+")}
        return "*" not in self.state and not words & {
            "DOWN",
            "DRAIN",
            "DRAINED",
            "DRAINING",
            "FAIL",
            "FAILING",
            "ERROR",
        }


def parse_show_partitions(text: str) -> tuple[Partition, ...]:
    """Parse the output of ``scontrol -o show partition``."""
    found = []
    for fields in map(fields_of, text.splitlines()):
        if "PartitionName" in fields:
            found.append(
                Partition(
                    name=fields["PartitionName"],
                    default=fields.get("Default") == "YES",
                    state=fields.get("State", ""),
                    max_time=fields.get("MaxTime", ""),
                    max_hosts=fields.get("MaxNodes", ""),
                    num_hosts=fields.get("TotalNodes", ""),
                )
            )
    return tuple(found)


def parse_show_nodes(text: str) -> tuple[NodeState, ...]:
    """Parse the output of ``scontrol -o show node``."""
    found = []
    for fields in map(fields_of, text.splitlines()):
        if "NodeName" in fields:
            found.append(NodeState(fields["NodeName"], fields.get("State", ""), something(fields.get("Reason", ""))))
    return tuple(found)


def parse_show_reservations(text: str) -> tuple[Reservation, ...]:
    """Parse the output of ``scontrol -o show reservation``; empty if it says that there are none."""
    found: list[Reservation] = []
    for line in text.splitlines():
        fields = fields_of(line)
        if "ReservationName" in fields:
            found.append(
                Reservation(
                    name=fields["ReservationName"],
                    start=fields.get("StartTime", ""),
                    end=fields.get("EndTime", ""),
                    state=fields.get("State", ""),
                    users=something(fields.get("Users", "")),
                    accounts=something(fields.get("Accounts", "")),
                    groups=something(fields.get("Groups", "")),
                    nodes=something(fields.get("Nodes", "")),
                    num_nodes=int(count) if (count := fields.get("NodeCnt", "")).isdecimal() else 0,
                    flags=something(fields.get("Flags", "")),
                )
            )
    return tuple(found)


def parse_kill_wait(text: str) -> float:
    """Parse KillWait, in seconds, out of ``scontrol show config``.

    Raises:
        SlurmParseError: the text does not contain it.
    """
    match = _KILL_WAIT.search(text)
    if match is None:
        raise SlurmParseError("scontrol show config", text)
    return float(match[1])


def parse_free_nodes(text: str) -> int:
    """Parse the output of ``sinfo -h -o %n|%T``: the number of nodes that no job uses and that can be used."""
    states = dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)
    return sum(state in _FREE for state in states.values())


def parse_leaves(text: str) -> dict[str, str]:
    """Parse the output of ``scontrol show topology``: the compact list of hosts of each leaf switch."""
    lines = (fields_of(line) for line in text.splitlines())
    return {found["SwitchName"]: found.get("Nodes", "") for found in lines if found.get("Level") == "0"}


def parse_partitions(text: str) -> tuple[str, ...]:
    """Parse the output of ``sinfo -h -o %R``: the partitions' names without duplicates, in its order."""
    return tuple(dict.fromkeys(text.split()))
