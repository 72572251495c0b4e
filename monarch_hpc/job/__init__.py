"""Jobs, which keep hosts from one program to the next; and commands, ports and shells on hosts. As `monarch.job`."""

from __future__ import annotations

from monarch_hpc.job.current import load_current_job, set_current_job
from monarch_hpc.job.execute import exec_command
from monarch_hpc.job.identity import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)
from monarch_hpc.job.local import LocalJob
from monarch_hpc.job.port_forward import PortForwarder
from monarch_hpc.job.process import ProcessJob, hosts_from_config
from monarch_hpc.job.shell import shell
from monarch_hpc.job.slurm import SlurmJob
from monarch_hpc.job.state import JobState
from monarch_hpc.job.trait import (
    DEFAULT_JOB_PATH,
    JobTrait,
    MeshAdminConfig,
    TelemetryConfig,
    job_load,
    job_loads,
)

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "JobState",
    "JobTrait",
    "LocalJob",
    "MeshAdminConfig",
    "PortForwarder",
    "ProcessJob",
    "SlurmJob",
    "TelemetryConfig",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]
