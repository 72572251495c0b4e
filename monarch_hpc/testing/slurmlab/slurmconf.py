"""Renders Slurm's configuration files for a lab. Pure text; every setting that is not obvious has its reason."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.testing.slurmlab.users import RESTRICTED_GROUP

__all__ = [
    "CGROUP_CONF",
    "JOB_SUBMIT_LUA",
    "LOGIN",
    "LOGINS",
    "RESERVATION",
    "RESOLV_CONF",
    "Cluster",
    "render_gres_conf",
    "render_hosts",
    "render_slurm_conf",
    "reservation_argv",
]

LOGIN = "login"
# Users of large sites come back on another login host than the one they left; homes are shared, processes are not.
LOGINS = (LOGIN, "login2")
RESERVATION = "maint"
# Unless the version is configured, slurmd detects it from a cgroup file system, and exits if there is none.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
# Exists only inside the lab's own networks, so that several labs can use the same one.
_SUBNET = "10.177.0"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The simulated cluster; the real machine may have fewer cores and no GPU at all."""

    num_hosts: int = 4
    num_cpus: int = 8
    num_gpus: int = 4
    memory_mib: int = 4000

    @property
    def hosts(self) -> tuple[str, ...]:
        """The compute hosts, in Slurm's order."""
        return tuple(f"n{number}" for number in range(1, self.num_hosts + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """All hosts, login hosts first."""
        return (*LOGINS, *self.hosts)

    def address(self, host: str) -> str:
        """The IPv4 address of a host."""
        return f"{_SUBNET}.{self._number(host)}"

    def hardware_address(self, host: str) -> str:
        """The MAC address of a host: the same after each boot, as a real host's. Others remember it for minutes."""
        return f"02:00:00:00:01:{self._number(host):02x}"

    def _number(self, host: str) -> int:
        return 1 + LOGINS.index(host) if host in LOGINS else 11 + self.hosts.index(host)


def render_hosts(cluster: Cluster) -> str:
    """/etc/hosts of every host."""
    lines = ["127.0.0.1 localhost"]
    for name in cluster.machines:
        # The second form is the peer's address on a dual-stack socket, such as torch's store has.
        lines += [f"{cluster.address(name)} {name}", f"::ffff:{cluster.address(name)} {name}"]
    return "\n".join(lines) + "\n"


JOB_SUBMIT_LUA = """\
-- The check of a site that has its own words for jobs without an account, in partition `checked`.
function slurm_job_submit(job, partitions, uid)
    if job.partition == "checked" and job.account == nil then
        slurm.log_user("Job refused by the site's check: an account is needed in partition checked (-A)")
        return slurm.ERROR
    end
    -- AllowAccounts of the partition, for versions of Slurm (24.11) that need a database for it.
    if job.partition == "paid" and job.account ~= "physics" then
        return slurm.ESLURM_INVALID_ACCOUNT
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""

RESOLV_CONF = """\
# No name server can be reached from the lab, and each query to one would time out after 10 s.
# Without any, 127.0.0.1 is queried, and refuses at once.
"""


def render_gres_conf(cluster: Cluster, devices: Path) -> str:
    """gres.conf of every host: Slurm counts GPUs by their device files."""
    if not cluster.num_gpus:
        return "AutoDetect=off\n"
    return f"AutoDetect=off\nName=gpu Type=fake File={devices}/nvidia[0-{cluster.num_gpus - 1}]\n"


def render_slurm_conf(cluster: Cluster, base: Path) -> str:
    """slurm.conf of every host."""
    few = cluster.hosts[: max(1, cluster.num_hosts // 2)]
    return f"""\
ClusterName=slurmlab
SlurmctldHost={LOGIN}({cluster.address(LOGIN)})
SlurmctldPort=26817
SlurmdPort=26818
SrunPortRange=27000-27999
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits cred_expire + 1 s; the default is two minutes.
AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=5
CredType=cred/munge
StateSaveLocation={base}/state
# Each host has its own /run and /tmp, so the same path is a different folder on each.
SlurmdSpoolDir=/run/slurmd
TmpFS=/tmp
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd.%n.log

# Works without cgroups and without CAP_SYS_RESOURCE.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
PropagateResourceLimits=NONE
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={base}/log/jobcomp.log

# Hosts may claim more than the machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu

# Short intervals, for tests, not for production; but longer than a process stands still on a busy machine.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2,sched_min_interval=0
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
TCPTimeout=2
InactiveLimit=0
# Few jobs of ours ignore SIGTERM, and programs that handle it, on a busy machine, have six seconds less than this.
KillWait=30
MinJobAge=120
WaitTime=0
# With 2, hosts that an administrator set down would return by themselves.
ReturnToService=1
UnkillableStepTimeout=10
JobRequeue=1
EnforcePartLimits=ANY
# Only the partition that says so gives its hosts up; its jobs get SIGTERM, and SIGKILL after GraceTime and KillWait.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobSubmitPlugins=lua

{_render_nodes(cluster)}
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1 PreemptMode=OFF
PartitionName=debug Default=YES OverSubscribe=NO
PartitionName=short Nodes={",".join(few)} MaxTime=2 DefaultTime=1
PartitionName=low
PartitionName={RESTRICTED_GROUP} AllowGroups={RESTRICTED_GROUP}
PartitionName=paid AllowAccounts=physics
PartitionName=checked
PartitionName=scavenge PriorityTier=0 PreemptMode=REQUEUE GraceTime=30
"""


def reservation_argv(cluster: Cluster) -> list[str]:
    """The command that makes the reservation of the last host for alice."""
    return [
        "scontrol",
        "create",
        "reservation",
        f"ReservationName={RESERVATION}",
        "Users=alice",
        f"Nodes={cluster.hosts[-1]}",
        # It begins in a year, and FLEX lets its jobs begin earlier: so the host stays available to others.
        "StartTime=now+365days",
        "Duration=60",
        "Flags=FLEX",
    ]


def _render_nodes(cluster: Cluster) -> str:
    cpus = cluster.num_cpus
    claims = f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={cluster.memory_mib}"
    if cluster.num_gpus:
        claims += f" Gres=gpu:fake:{cluster.num_gpus}"
    # Of free hosts, the first ones: with equal weights it would be the smallest row of neighbours that is enough.
    return "\n".join(
        f"NodeName={host} NodeAddr={cluster.address(host)} Weight={place} {claims}"
        for place, host in enumerate(cluster.hosts, 1)
    )
