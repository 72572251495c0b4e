"""Named places in agents, heads, programs and commands at which tests have the process fail: ``head.keep=kill``.

A place costs one look at an empty dict where nothing is armed. `monarch_hpc.testing.faults` has the variable for tests.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError

__all__ = ["FAILPOINTS", "FAILPOINTS_VARIABLE", "arm", "failpoint"]

FAILPOINTS_VARIABLE = "MONARCH_HPC_FAILPOINTS"

FAILPOINTS: Mapping[str, str] = {
    "agent.cast": "an agent has a message for several procs, and has passed it on to none yet",
    "agent.close": "an agent is told that a run is over, and has ended nothing yet",
    "agent.keep": "an agent is told that a mesh is kept, and does not know it yet",
    "agent.spawn": "an agent has an order to start procs, and has started none yet",
    "head.keep": "a head has taken a mesh out of its run, and has told no agent",
    "head.kept": "all agents know that a mesh is kept, and its program is not told",
    "head.takeover": "a head has given a run to another program, and has not told it of the procs",
    "move.claimed": "a command has claimed ranks for the hosts of another allocation, and has decided nothing yet",
    "move.decided": "the hosts of an allocation join another one, and the registry does not know",
    "move.recorded": "the registry knows, too, and the agents have not been told",
    "program.keep": "the procs of a mesh serve all runs, and the head is not asked to keep them",
    "program.takeover": "a program knows the procs of the run that it takes over, and has adopted none",
    "run.owner": "a command has started a program, and does not own its run yet",
}
"""All names, and what is true there."""

_ACTIONS = ("kill", "raise", "stop")
_RULE = r"(?P<name>[a-z.]+)(?:@(?P<host>\d+))?=(?P<action>[a-z]+)"


@dataclass(slots=True, eq=False)
class _Rule:
    action: str
    done: bool = False


_armed: dict[str, _Rule] = {}


def arm(text: str, host: int = -1) -> None:
    """Have this process fail at the named places, at the first visit of each.

    Args:
        text: ``NAME=ACTION`` or ``NAME@HOST=ACTION``, several with commas. ``kill`` ends the process by SIGKILL,
            ``stop`` stops it until it gets SIGCONT, ``raise`` raises `RuntimeError` there.
        host: rank of this process's host; rules for other hosts do not apply.

    Raises:
        ConfigError: no such place, or no such action.
    """
    _armed.clear()
    for part in filter(None, text.split(",")):
        rule = re.fullmatch(_RULE, part)
        if rule is None or rule["name"] not in FAILPOINTS or rule["action"] not in _ACTIONS:
            problem = f"give NAME[@HOST]=ACTION, with {', '.join(_ACTIONS)} and one of {', '.join(FAILPOINTS)}"
            raise ConfigError("", part, f"${FAILPOINTS_VARIABLE}", f"{part!r:.80}: {problem}")
        if rule["host"] is None or int(rule["host"]) == host:
            _armed[rule["name"]] = _Rule(rule["action"])


def failpoint(name: str) -> None:
    """Fail here, if this place is armed and was not visited before.

    Raises:
        RuntimeError: it is armed so.
    """
    rule = _armed.get(name)
    if rule is None or rule.done:
        return
    rule.done = True
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rule.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    raise RuntimeError(f"failpoint {name}: {FAILPOINTS[name]}")
