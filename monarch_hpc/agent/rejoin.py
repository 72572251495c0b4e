"""The next incarnation of a fenced agent, which asks a head to be seated again: the same process begins anew.

So it stays a task of the agents' step, of which Slurm knows, and nothing of its former state is left. It does not lead:
a head of a later term rules, or none does, and then it leaves after `agent.rejoin_s`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from monarch_hpc.agent.agent_args import AgentArgs

__all__ = ["REJOIN", "begin_anew"]

REJOIN = -1
"""In place of an exit code: the process begins anew."""


def begin_anew(args: AgentArgs, rejoin_s: float) -> NoReturn:
    """Replace this process by an agent of the same host, with another incarnation.

    Args:
        rejoin_s: config key `agent.rejoin_s`.
    """
    words = ["--again", "0", "--ready", "-1", "--rejoins", str(rejoin_s)]
    if args.lifeline_fd >= 0:
        lifeline = os.dup(args.lifeline_fd)
        os.set_inheritable(lifeline, True)
        words += ["--lifeline-fd", str(lifeline)]
    key = os.memfd_create("key")
    os.write(key, args.key)
    os.lseek(key, 0, os.SEEK_SET)
    os.dup2(key, 0)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "monarch_hpc.agent", *args.arguments, *words])
