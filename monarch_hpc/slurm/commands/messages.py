"""Explains Slurm's messages: why it refused a job, why a job waits or ended, and whether slurmctld answered at all.

Messages are matched on the part that is the same from 20.11 to 26.05; unknown ones are shown unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass

__all__ = [
    "advice_for",
    "advice_for_change",
    "explain_output",
    "is_busy",
    "is_gone",
    "reason_in_words",
    "refuses_for_now",
]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """One kind of refusal.

    Args:
        words: parts of Slurm's message, any of which identifies this kind.
        flags: flags of the job that may be the cause, the most likely first.
        advice: what to change; ``{known}`` stands for the valid names, if they could be listed.
    """

    words: tuple[str, ...]
    flags: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True)
class _Message:
    """A message in a job's output: parts of it, any of which identifies it, and what it asks for."""

    words: tuple[str, ...]
    advice: str


_ASSOCIATIONS = "list yours with: sacctmgr -nP show assoc user=$USER format=account,partition,qos"

# The order matters: sbatch may print two messages, and the kinds that say more come first.
_REFUSALS = (
    _Refusal(
        ("Could not establish a configuration source", "Unable to process configuration file"),
        (),
        "Slurm's commands are here, but no cluster is configured for them: load the site's Slurm module or set "
        "SLURM_CONF, work on a login node, or try the program here with 'monarch-hpc run --local 2 SCRIPT'",
    ),
    _Refusal(
        ("Invalid account or account/partition combination", "InvalidAccount"),
        ("account", "partition"),
        f"name an account that may use this partition with -A; {_ASSOCIATIONS}",
    ),
    _Refusal(
        ("Invalid partition name", "invalid partition specified", "No partition specified"),
        ("partition",),
        "name a partition with -p{known}; limits of each: sinfo -s",
    ),
    _Refusal(("Invalid qos", "InvalidQOS"), ("qos",), f"name a QOS that your account has with -q; {_ASSOCIATIONS}"),
    _Refusal(
        ("Requested time limit is invalid", "Time limit specification required", "Invalid --time"),
        ("time", "partition"),
        "name a time within the partition's limit with -t; limits of each: sinfo -o '%R %l'",
    ),
    _Refusal(
        ("QOSMaxWallDurationPerJobLimit",),
        ("time", "qos"),
        "the QOS allows less time; name less with -t, or another QOS with -q",
    ),
    _Refusal(
        ("AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit", "AssocGrpSubmitJobsLimit"),
        ("account", "qos"),
        "you have as many jobs in the queue as the account or QOS allows (some sites say this also where the "
        "account is missing: name it with -A); see yours with: squeue --me",
    ),
    _Refusal(
        ("Job violates accounting/QOS policy",),
        ("account", "qos", "time", "nodes"),
        f"a limit of the account or QOS forbids this size, time or number of jobs; {_ASSOCIATIONS},maxwall,maxtres",
    ),
    _Refusal(
        ("Invalid generic resource", "Invalid GRES"),
        ("gpus-per-node", "gres"),
        "hosts have no such GPUs, or the site wants another form (config key slurm.gpus_form); "
        "what hosts have: sinfo -o '%R %G'",
    ),
    _Refusal(
        ("Invalid feature specification",),
        ("constraint",),
        "no host has this feature; name one with -C; what hosts have: sinfo -o '%R %f'",
    ),
    _Refusal(
        ("Requested reservation", "requested reservation", "ReservationName"),
        ("reservation",),
        "name a reservation that you may use and that has begun with --reservation{known}; some sites also require "
        "a special QOS for it (-q)",
    ),
    _Refusal(
        ("User's group not permitted", "Access/permission denied", "not permitted to use this partition"),
        ("partition", "account"),
        "this partition is not for you or your account; name another with -p{known}",
    ),
    _Refusal(
        ("Node count specification invalid", "More processors requested than permitted"),
        ("nodes", "ntasks-per-node", "partition"),
        "the partition does not have that much, or does not give it to one job; ask for less with -N; "
        "limits: scontrol show partition",
    ),
    _Refusal(
        ("Requested node configuration is not available",),
        ("nodes", "gpus-per-node", "gres", "constraint", "mem", "partition"),
        "no hosts have all of this in combination; what they have: sinfo -o '%R %D %c %m %G %f'",
    ),
    _Refusal(
        ("Invalid node name specified",), ("nodelist", "exclude"), "name existing hosts with -w or -x; see: sinfo -N"
    ),
    _Refusal(
        ("read-only on the compute nodes", "read-only file system"),
        ("output", "chdir"),
        "set config key paths.shared to a directory that the compute nodes can write",
    ),
    _Refusal(
        ("unrecognized option", "unrecognised option", "ambiguous option", "invalid option"),
        (),
        "this Slurm does not know an option; check --slurm and the config keys slurm.job_flags and slurm.extra",
    ),
    _Refusal(
        ("Job size specification needs to be provided", "not accept your job", "Job rejected"),
        (),
        "the site's own check refused the job; its message above says what it requires, and config key "
        "slurm.job_flags can drop or change any flag",
    ),
)

# Refusals of `scontrol update`, each with what to do.
_CHANGES = (
    (
        "Access/permission denied",
        (
            "at most sites users may shorten a running job, and operators alone may lengthen it: ask them for "
            "'{order}', or take another allocation before this one ends (monarch-hpc alloc NAME)"
        ),
    ),
    (
        "Requested time limit is invalid",
        (
            "the partition or the QOS does not allow as much time (limits: sinfo -o '%R %l'); take another allocation "
            "before this one ends"
        ),
    ),
    (
        "DB index",
        (
            "Slurm has not yet recorded the job's last change in its database; try again in a minute. A Slurm without "
            "a database can shrink a job only once"
        ),
    ),
    (
        "Requested operation is presently disabled",
        "this site does not let jobs be changed; take another allocation (monarch-hpc alloc NAME)",
    ),
    (
        "Job violates accounting/QOS policy",
        "a limit of the account or the QOS forbids it; take another allocation before this one ends",
    ),
)

_BUSY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Rate limit exceeded",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Message receive failure",
    "Connection refused",
    "Resource temporarily unavailable",
    "slurm_persist_conn_open",
    "Unable to establish controller machine",
)

_HELD_BACK = (
    "Memory required by task is not available",  # also of steps that ask for none, until slurmctld knows the hosts
    "Requested nodes are busy",
    "step creation temporarily disabled",
    "step creation still disabled",
)

_GONE = ("Invalid job id specified", "Job/step already completing or completed")

_MAINTENANCE = "it would run into a maintenance window; a shorter -t may fit before"
# Reasons that squeue gives for pending jobs, with their meanings; matched by prefix.
_REASONS = (
    ("Priority", "jobs of higher priority are ahead"),
    ("Resources", "waiting for hosts to become free"),
    ("ReqNodeNotAvail, Reserved for maintenance", _MAINTENANCE),
    ("Job can not start due to maintenance", _MAINTENANCE),
    ("ReqNodeNotAvail, May be reserved", "hosts asked for are reserved for other jobs; drop -w"),
    ("ReqNodeNotAvail", "hosts asked for are down, drained or reserved; drop -w or -C, or wait"),
    ("Nodes required for job are DOWN", "hosts asked for are down, drained or reserved"),
    ("QOSMaxJobsPerUser", "as many of your jobs run as the QOS allows; release another allocation"),
    ("AssocMaxJobs", "as many jobs run as your account allows; release another allocation"),
    ("QOSMaxSubmitJob", "as many of your jobs are queued as the QOS allows"),
    ("AssocMaxSubmitJob", "as many jobs are queued as your account allows"),
    ("QOSMaxGRES", "your GPUs in use have reached the QOS's limit"),
    ("QOSMaxNode", "your hosts in use have reached the QOS's limit"),
    ("QOSGrpGRES", "all GPUs of the QOS are in use"),
    ("QOSGrpNode", "all hosts of the QOS are in use"),
    ("MaxGRESPerAccount", "your account's GPUs are in use"),
    ("QOSMaxWall", "the QOS allows less time; release it and ask for less with -t"),
    ("AssocMaxWall", "your account allows less time; release it and ask for less with -t"),
    ("AssocGrp", "your account's hours or hosts are used up; less time (-t) may fit"),
    ("QOSGrp", "the QOS's hours or hosts are used up; less time (-t) may fit"),
    ("PartitionTimeLimit", "the partition allows less time; release it and ask for less with -t"),
    ("PartitionNodeLimit", "the partition gives fewer hosts to one job, or hosts are down"),
    ("PartitionDown", "the administrators closed the partition"),
    ("PartitionInactive", "the administrators closed the partition"),
    ("BadConstraints", "no hosts can ever give what was asked; release it and ask for something else"),
    ("JobHeldUser", "you hold it; let it go with: scontrol release"),
    ("JobHeldAdmin", "the administrators hold it; ask them"),
    ("job requeued in held state", "it was requeued and is held; let it go with: scontrol release"),
    ("launch failed requeued held", "hosts failed to start it, and Slurm holds it; ask the administrators"),
    ("JobHoldMaxRequeue", "hosts failed to start it too often, and Slurm holds it; ask the administrators"),
    ("DependencyNeverSatisfied", "what it depends on can no longer happen; release it"),
    ("Dependency", "waiting for another job"),
    ("BeginTime", "its requested start time has not come"),
    ("ReservationInvalid", "its reservation is gone, or not for this job; release it"),
    ("ReservationDeleted", "its reservation is gone; release it"),
    ("Reservation", "waiting for its reservation to begin"),
    ("InvalidAccount", "the account is not, or no longer, valid"),
    ("InvalidQOS", "the QOS is not, or no longer, valid"),
    ("QOSUsageThreshold", "the QOS's use has fallen behind its threshold"),
    ("Licenses", "waiting for a licence"),
    ("Cleaning", "being requeued"),
    ("Constraints", "waiting for hosts with the features asked for"),
    ("MpiPortsBusy", "waiting for network ports that Slurm keeps for MPI"),
    ("RaisedSignal", "its prolog was ended by a signal; tell the administrators"),
    ("MaxPoweredUpNodes", "waiting for cloud hosts to boot"),
)


# Messages of srun and slurmstepd in the output of a job or step, with their meaning and the next step. The order
# matters: the first that occurs says most.
_OUTPUT = (
    _Message(
        ("oom_kill event", "oom-kill event", "Out Of Memory", "out-of-memory handler"),
        "a host's processes took more memory than the job has there, which files in /tmp and /dev/shm may take, too: "
        "use less in each proc, or ask for more with --slurm=--mem=0",
    ),
    _Message(
        ("DUE TO TIME LIMIT",),
        "the time limit was reached: ask for more with -t, and save before the end",
    ),
    _Message(
        ("DUE TO PREEMPTION",),
        "a job of higher priority took the hosts: use another queue, or --slurm=--requeue and save before the end",
    ),
    _Message(("DUE TO JOB REQUEUE",), "the job went back to the queue; 'monarch-hpc status' shows its next start"),
    _Message(
        ("DUE TO NODE FAILURE", "Node failure on"),
        "a host failed: the others go on if the job has --no-kill; take another one, without it (-x)",
    ),
    _Message(
        ("UNCORRECTABLE MEMORY ERROR",),
        "the memory of a host is broken: tell the help desk its name, and leave it out with -x",
    ),
    _Message(
        ("DUE TO TASK FAILURE",), "a task failed, and --kill-on-bad-exit ended the others: its own words are above"
    ),
    _Message(
        ("step creation temporarily disabled", "step creation still disabled", "Requested nodes are busy"),
        "another step holds the CPUs or GPUs: end it (squeue --me --steps), or give both steps --overlap",
    ),
    _Message(
        ("Memory required by task is not available",),
        "another step holds the job's memory: give this one --overlap --mem=0; after a restart of slurmctld it refuses "
        "all steps so until the hosts have reported",
    ),
    _Message(
        ("cpus-per-task set by two different environment variables",),
        "SLURM_CPUS_PER_TASK and SLURM_TRES_PER_TASK contradict each other: unset both, and name -c",
    ),
    _Message(
        ("Invalid MPI plugin name", "MPI plugin's pre-launch setup failed", "MPI: Cannot"),
        "Slurm was built without this MPI plugin: name one of 'srun --mpi=list' in config key procs.mpi",
    ),
    _Message(
        ("Error configuring interconnect",),
        "the network's identifiers (VNIs) are used up or refused: end other steps of several hosts, or share one "
        "identifier with config key slurm.network: job_vni",
    ),
    _Message(
        ("Step limit reached",),
        "the job may have no more steps: take a new allocation",
    ),
    _Message(
        ("has been revoked", "Job credential revoked", "Job credential expired"),
        "the allocation had ended; 'monarch-hpc status' shows how",
    ),
    _Message(
        ("InactiveLimit reached",),
        "the site ends jobs whose command is silent for long: scontrol show config | grep InactiveLimit",
    ),
    _Message(
        ("Task launch for", "Communication connection failure"),
        "a host did not start its task: it is down, or about to be; leave it out with -x",
    ),
    _Message(
        ("Access denied by pam_slurm_adopt",),
        "hosts let in only those with a job there: use 'monarch-hpc run' or srun --overlap instead of ssh",
    ),
    _Message(
        ("Job step aborted: Waiting up to", "forcing job termination", "First task exited"),
        "srun was told to end the step: by scancel, a signal, or --wait after the first task",
    ),
)


def explain_output(text: str) -> str:
    """Return the meaning of Slurm's message in a job's or step's output, and the next step; empty for none known."""
    return next((message.advice for message in _OUTPUT if any(words in text for words in message.words)), "")


def advice_for(stderr: str, flags: Mapping[str, str], known: Sequence[str] = ()) -> str:
    """Return what to change after a refusal; empty for an unknown message.

    Args:
        stderr: Slurm's message.
        flags: the job's flags: name without dashes to value.
        known: valid names, if they could be listed.
    """
    for refusal in _REFUSALS:
        if any(words in stderr for words in refusal.words):
            asked = ", ".join(f"--{flag}={flags[flag]}" for flag in refusal.flags if flags.get(flag))
            names = f" (there are: {', '.join(known)})" if known else ""
            return (f"requested: {asked}; " if asked else "") + refusal.advice.format(known=names)
    return ""


def advice_for_change(stderr: str, job_id: int, change: str) -> str:
    """Return what to do after Slurm refused to change a job; empty for an unknown message.

    Args:
        stderr: Slurm's message.
        job_id: the job.
        change: what was asked, as for `scontrol update`.
    """
    for words, advice in _CHANGES:
        if words in stderr:
            return advice.format(order=f"scontrol update JobId={job_id} {change}")
    return ""


def is_busy(stderr: str) -> bool:
    """Tell whether *stderr* says that slurmctld did not answer, so that the outcome of the request is unknown."""
    return any(words in stderr for words in _BUSY)


def refuses_for_now(stderr: str) -> bool:
    """Tell whether *stderr* says that Slurm starts no step at this time; the same step may start later."""
    return is_busy(stderr) or any(words in stderr for words in _HELD_BACK)


def is_gone(stderr: str) -> bool:
    """Tell whether *stderr* says that Slurm does not know the job, or that the job has ended."""
    return any(words in stderr for words in _GONE)


def reason_in_words(reason: str) -> str:
    """Return Slurm's reason with its meaning; an unknown reason is returned unchanged."""
    for beginning, meaning in _REASONS:
        if reason.startswith(beginning):
            return f"{reason}: {meaning}"
    return reason
