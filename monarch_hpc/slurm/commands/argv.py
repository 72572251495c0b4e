"""Slurm command lines, their environment, and the merging of a job's flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from monarch_hpc.config import FlagValue
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.commands.jobs import SACCT_FORMAT, SQUEUE_FORMAT, WAITING_FORMAT

__all__ = [
    "COMMANDS",
    "accounted_argv",
    "agent_step_argv",
    "change_job_argv",
    "configuration_argv",
    "flag_words",
    "merge_options",
    "mpi_step_argv",
    "node_states_argv",
    "own_job_id",
    "partition_limits_argv",
    "partitions_argv",
    "queue_argv",
    "relay_argv",
    "release_argv",
    "requeue_argv",
    "reservations_argv",
    "scrubbed",
    "show_job_argv",
    "show_nodes_argv",
    "signal_batch_argv",
    "submit_argv",
    "submit_next_argv",
    "test_only_argv",
    "topology_argv",
    "version_argv",
    "waiting_argv",
    "wide_step_argv",
    "write_script_argv",
]

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
"""Commands that are required; sinfo only improves an error message."""

# Variables that would change what Slurm's commands do or print, or that describe a job that we may run in.
_SLURM_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "PMI_",
    "PMI2_",
    "PMIX_",
)
# Address of slurmctld, and credentials for it.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_SOCKET"})

# sbatch's one-letter options.
_LONG = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "S": "core-spec",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
# Mutually exclusive flags: the later one replaces the earlier.
_RIVALS = (
    frozenset({"requeue", "no-requeue"}),
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"exclusive", "oversubscribe"}),
)
_OURS = {
    "job-name": "jobs are found by it after a crash",
    "output": "the last lines of agents are read from it",
    "error": "the last lines of agents are read from the output",
    "array": "an allocation is one job; take several under several names",
    "clusters": "submit on a login node of that cluster",
    "parsable": "it is always set",
    "test-only": "it is an option of alloc itself: monarch-hpc alloc --test-only",
    "wait": "alloc waits by itself; --bg does not",
    "wrap": "the script is ours",
}


def own_job_id(environ: Mapping[str, str]) -> str:
    """Name the job that a process with this environment runs in, for Slurm's commands; empty outside of a job.

    The number of an array's last task is that of the whole array: commands would mean all its tasks.
    """
    try:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    except KeyError:
        return environ.get("SLURM_JOB_ID", "")


def submit_argv(script: Path) -> tuple[str, ...]:
    """Submit *script*; all flags of the job are in it."""
    return ("sbatch", "--parsable", str(script))


def submit_next_argv(script: Path, job_id: str) -> tuple[str, ...]:
    """Submit *script* as a job that starts when another one has ended."""
    return ("sbatch", "--parsable", f"--dependency=afterany:{job_id}", str(script))


def requeue_argv(job_id: str) -> tuple[str, ...]:
    """End a running batch job, and put it back into the queue."""
    return ("scontrol", "requeue", str(job_id))


def signal_batch_argv(job_id: int, signal: int) -> tuple[str, ...]:
    """Send the batch script of a job a signal, and no step of it."""
    return ("scancel", "--batch", f"--signal={signal}", str(job_id))


def write_script_argv(job_id: str, path: Path) -> tuple[str, ...]:
    """Write the batch script of a job to a file."""
    return ("scontrol", "write", "batch_script", str(job_id), str(path))


def queue_argv(names: Iterable[str]) -> tuple[str, ...]:
    """List this user's pending and running jobs with these job names."""
    return ("squeue", "--me", "--noheader", f"--format={SQUEUE_FORMAT}", f"--name={','.join(sorted(names))}")


def test_only_argv(components: Sequence[Mapping[str, FlagValue]]) -> tuple[str, ...]:
    """Ask when a job with the flags of these components would start; nothing is submitted."""
    words = [word for flags in components for word in (":", *flag_words(flags))][1:]
    return ("sbatch", "--test-only", *words, "--wrap=:")


def waiting_argv() -> tuple[str, ...]:
    """List this user's jobs that wait, with Slurm's estimates of their start."""
    return ("squeue", "--me", "--noheader", "--states=PENDING", f"--format={WAITING_FORMAT}")


def partition_limits_argv() -> tuple[str, ...]:
    """Show all partitions with their limits."""
    return ("scontrol", "--oneliner", "show", "partition")


def show_job_argv(job_id: int | str) -> tuple[str, ...]:
    """Show a job, even one that ended a few minutes ago."""
    return ("scontrol", "--oneliner", "show", "job", str(job_id))


def change_job_argv(job_id: int, change: str) -> tuple[str, ...]:
    """Change a job.

    Args:
        change: one assignment of `scontrol update`: ``TimeLimit=+30``.
    """
    return ("scontrol", "update", f"JobId={job_id}", change)


def show_nodes_argv(hosts: Sequence[str]) -> tuple[str, ...]:
    """Show nodes with their states."""
    return ("scontrol", "--oneliner", "show", "node", ",".join(hosts))


def configuration_argv() -> tuple[str, ...]:
    """Show slurmctld's configuration."""
    return ("scontrol", "show", "config")


def accounted_argv(job_id: int) -> tuple[str, ...]:
    """Show what the accounting database, if there is one, has of a job."""
    return ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", f"--format={SACCT_FORMAT}")


def release_argv(job_id: int | str) -> tuple[str, ...]:
    """Cancel a job: SIGTERM to all its processes, SIGKILL after the site's KillWait."""
    return ("scancel", str(job_id))


def relay_argv(job_id: int, host: str, command: Sequence[str], component: int = -1) -> tuple[str, ...]:
    """Run *command* on one host of a job, with unbuffered binary input and output.

    Args:
        component: that has the host, in a heterogeneous job; -1 in any other.

    Never on more than one host: where steps get network identifiers, wider steps may exhaust them.
    """
    return (
        *("srun", f"--jobid={job_id}", *_component_words(component)),
        *(f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--job-name=relay"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--unbuffered", "--quiet"),
        *command,
    )


def wide_step_argv(job_id: int, sizes: Sequence[int], command: Sequence[str]) -> tuple[str, ...]:
    """Run *command* once on each host of a job that has no other step.

    Args:
        sizes: number of hosts of the job; of a heterogeneous one, of each component.
    """
    words: list[str] = []
    for component, num_hosts in enumerate(sizes):
        words += [":"] if component else []
        words += _component_words(component if len(sizes) > 1 else -1)
        words += [f"--nodes={num_hosts}", f"--ntasks={num_hosts}", "--ntasks-per-node=1", "--job-name=look"]
        words += ["--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--quiet", *command]
    return ("srun", f"--jobid={job_id}", *words)


def mpi_step_argv(
    job_id: int,
    hosts: Sequence[str],
    per_host: int,
    flags: Mapping[str, FlagValue],
    command: Sequence[str],
    component: int = -1,
) -> tuple[str, ...]:
    """Run *command* *per_host* times on each of *hosts*, ranks in their order, as one step of a job.

    Args:
        hosts: in Slurm's node order.
        flags: further flags, as `flag_words` takes them; they cannot change the step's shape.
        component: that has the hosts, in a heterogeneous job; -1 in any other.
    """
    shape: dict[str, FlagValue] = {
        **flags,
        "nodes": str(len(hosts)),
        "ntasks": str(len(hosts) * per_host),
        "ntasks-per-node": str(per_host),
        "distribution": "block",
    }
    return (
        *("srun", f"--jobid={job_id}", *_component_words(component), f"--nodelist={','.join(hosts)}"),
        *("--job-name=mpi", "--quiet"),
        *flag_words(shape),
        *command,
    )


def agent_step_argv(
    job_id: int, host: str, flags: Mapping[str, FlagValue], command: Sequence[str], component: int = -1
) -> tuple[str, ...]:
    """Run an agent on one host of a job, in a step of its own.

    Args:
        flags: further flags, as `flag_words` takes them; they cannot change the step's shape.
        component: that has the host, in a heterogeneous job; -1 in any other.
    """
    shape: dict[str, FlagValue] = {**flags, "nodes": "1", "ntasks": "1", "ntasks-per-node": "1"}
    return (
        *("srun", f"--jobid={job_id}", *_component_words(component), f"--nodelist={host}"),
        *("--job-name=agent", "--quiet"),
        *flag_words(shape),
        *command,
    )


def _component_words(component: int) -> list[str]:
    return [] if component < 0 else [f"--het-group={component}"]


def partitions_argv() -> tuple[str, ...]:
    """List the partitions visible to this user."""
    return ("sinfo", "--noheader", "--format=%R")


def reservations_argv() -> tuple[str, ...]:
    """Show the reservations."""
    return ("scontrol", "--oneliner", "show", "reservation")


def node_states_argv(nodes: str) -> tuple[str, ...]:
    """List the states of these nodes, given as a compact list."""
    return ("sinfo", "--noheader", f"--nodes={nodes}", "--format=%n|%T")


def topology_argv() -> tuple[str, ...]:
    """Return the switches, as options of sbatch."""
    return ("scontrol", "show", "topology")


def version_argv(command: str) -> tuple[str, ...]:
    """Print Slurm's version, without contacting a daemon."""
    return (command, "--version")


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without variables that would change Slurm's commands; those that name slurmctld stay.

    SBATCH_ACCOUNT and the like are not lost: the configuration reads them, and they become flags in the script.
    """
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_SLURM_PREFIXES)}


def is_of_machine(name: str) -> bool:
    """Whether a variable describes Slurm on one machine, and is of no use on another."""
    return name in _KEPT or name.startswith(_SLURM_PREFIXES)


def merge_options(
    flags: Mapping[str, FlagValue], options: Sequence[str], refused: Mapping[str, str] = _OURS
) -> dict[str, FlagValue]:
    """Return *flags* with a user's sbatch options added; a later option replaces an earlier one.

    Args:
        flags: name without dashes to value; True for a bare flag, None or False to leave it out.
        refused: names of options that users cannot set, with the reason; by default those of an allocation's job.
        options: each ``--name``, ``--name=value``, ``--name value``, ``-x`` or ``-xvalue``.

    Raises:
        ConfigError: not an option of sbatch, or one that users cannot set.
    """
    merged = dict(flags)
    for option in options:
        name, value = _parse_option(option)
        if name in refused:
            raise ConfigError("slurm.extra", option, "--slurm", f"cannot be changed: {refused[name]}")
        for rivals in _RIVALS:
            if name in rivals:
                merged = {flag: old for flag, old in merged.items() if flag not in rivals}
        merged[name] = value
    return merged


def flag_words(flags: Mapping[str, FlagValue]) -> list[str]:
    """Return the *flags* that are set as ``--name`` and ``--name=value`` words, in their order."""
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in flags.items()
        if value is not None and value is not False
    ]


def _parse_option(option: str) -> tuple[str, FlagValue]:
    text = option.strip()
    if not text.isprintable():
        raise ConfigError("slurm.extra", repr(option), "--slurm", "must be one line of printable characters")
    if text.startswith("--") and text[2:3].isalpha():
        # The first '=' or space ends the name: "--mem=0", "--mem 0", "--comment=a b=c".
        cut = min((i for i in (text.find("="), text.find(" ")) if i >= 0), default=len(text))
        value = text[cut + 1 :].strip()
        return text[2:cut], value if cut < len(text) else True
    if text.startswith("-") and text[1:2] in _LONG:
        value = text[2:].lstrip()
        return _LONG[text[1]], value or True
    raise ConfigError(
        "slurm.extra", repr(option), "--slurm", 'not an option of sbatch; write "--name=value" or "--name"'
    )
