"""Ghost jobs: Slurm still runs the job of an allocation, and charges it, but none of its hosts has an agent any more.

A job outlives the loss of its first host (``--no-kill``), and with that its batch script, which would have ended it. A
ghost is cancelled; where not every host could be asked, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.errors import ConfigError, SlurmError
from monarch_hpc.core.text.hostlist import expand
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.jobs import JobDetail
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.slurm.death import has_host

__all__ = ["MARK", "ask_agents", "decide_ghost", "ghost_in_words", "parse_agents", "runs_without"]

MARK = "monarch-hpc-agents"
"""Begins the line with a host's answer; sites let steps print other lines."""


def decide_ghost(job: JobDetail | None, answers: Mapping[str, bool], head_host: str, batch_host: str) -> str:
    """Return why a job must be cancelled as a ghost; empty if it must not.

    Args:
        job: what Slurm says of it; None if Slurm has no record of it.
        answers: for each host that could be asked, whether it has an agent.
        head_host: the host on which the allocation's head was; empty if unknown.
        batch_host: the host on which the batch script was started; likewise.
    """
    if job is None or job.state.phase is not Phase.RUNNING or not job.hosts:
        return ""
    try:
        hosts = expand(job.hosts)
    except ConfigError:
        return ""
    # A host that was not asked, or could not be, may have one.
    if any(answers.get(host, True) for host in hosts):
        return ""
    return ghost_in_words(job, head_host, batch_host)


def ghost_in_words(job: JobDetail, head_host: str, batch_host: str) -> str:
    """Say that a job is a ghost, and what has become of the hosts that matter."""
    left = [
        f"{host}, with its {what}, has left the job"
        for host, what in _roles(head_host, batch_host).items()
        if host and not has_host(job, host)
    ]
    return "; ".join([f"no agent is left on its hosts ({job.hosts})", *left])


def _roles(head_host: str, batch_host: str) -> dict[str, str]:
    if head_host == batch_host:
        return {head_host: "head and batch script"}
    return {head_host: "head", batch_host: "batch script"}


def runs_without(job: JobDetail, host: str) -> bool:
    """Tell whether a job runs, and *host* is not in it any more; for its batch script's host, nothing will end it."""
    return job.state.phase is Phase.RUNNING and bool(host) and not has_host(job, host)


def ask_agents(slurm: SlurmClient, job: JobDetail, allocation: str, timeout_s: float) -> dict[str, bool]:
    """Ask the hosts of a job, by a step, whether they have an agent of an allocation; empty if they cannot be asked.

    Not by its address: a firewall between this machine and the hosts refuses connections just as a host without an
    agent does.

    Args:
        allocation: the allocation's id.
    """
    try:
        sizes = [len(expand(hosts)) for hosts in job.components]
        order = ("sh", "-c", _question(allocation))
        return parse_agents(slurm.run_on_all(job.job_id, sizes, order, timeout_s)) if sizes and all(sizes) else {}
    except (ConfigError, SlurmError):
        return {}


def _question(allocation: str) -> str:
    # An agent has the id as an argument, and so have its forks. The brackets hide the arguments of sh and grep. The
    # number of all arguments shows that they could be read: this shell has some.
    arguments = "cat /proc/[0-9]*/cmdline 2>/dev/null"
    every = f'{arguments} | grep -zc ""'
    ours = f'{arguments} | grep -zc "^[{allocation[0]}]{allocation[1:]}\\$"'
    return f'echo {MARK} "${{SLURMD_NODENAME:-?}}" "$({every})" "$({ours})"'


def parse_agents(text: str) -> dict[str, bool]:
    """Parse what the hosts have printed: for each that could read its processes, whether an agent is among them."""
    found = {}
    for words in map(str.split, text.splitlines()):
        if len(words) == 4 and words[0] == MARK and all(map(str.isdecimal, words[2:])) and int(words[2]):
            found[words[1]] = int(words[3]) > 0
    return found
