"""Jobs that run a command of torchrun on their hosts, as often as a program likes. As `monarch.job.spmd`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from monarch_hpc.core.arguments import check_instance, check_mapping, check_text, check_texts
from monarch_hpc.job.local import LocalJob
from monarch_hpc.job.slurm import SlurmJob
from monarch_hpc.job.state import JobState, check_env
from monarch_hpc.job.trait import JobTrait, job_load
from monarch_hpc.spmd.command import TorchrunCommand, parse_torchrun
from monarch_hpc.spmd.elastic import SPMDActor

__all__ = ["SPMDJob", "job_load", "serve"]

_MESH = "workers"
_OPTIONS = {"partition": "partition", "time": "time_limit", "account": "account", "qos": "qos", "mem": "mem"}
"""Arguments of `SlurmJob` by key of *scheduler_cfg*; other keys are options of sbatch."""


@runtime_checkable
class _Role(Protocol):
    """What is used of a role of torchx."""

    entrypoint: str
    args: Sequence[str]
    num_replicas: int
    env: Mapping[str, str]


@runtime_checkable
class _AppDef(Protocol):
    """What is used of an application of torchx."""

    roles: Sequence[_Role]


class SPMDJob(JobTrait):
    """A job that runs one command of torchrun on its hosts; `serve` makes it.

    Args:
        words: the command.
        num_hosts: number of hosts; None for the ``--nnodes`` of the command.
        scheduler: as for `serve`.
        options: *scheduler_cfg* of `serve`.
        env: variables of the ranks.

    Raises:
        TypeError: an argument of another type.
        ValueError: the command is not torchrun's, or there is no such scheduler here.
    """

    def __init__(
        self,
        words: Sequence[str],
        num_hosts: int | None = None,
        scheduler: str = "local_cwd",
        options: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._words = list(check_texts("command", words, "['torchrun', '--nproc-per-node=4', 'train.py']"))
        self._env = check_env(env)
        check_text("scheduler", scheduler)
        self._scheduler = scheduler
        self._options = {} if options is None else dict(check_mapping("scheduler_cfg", options, "{'time': '1:00:00'}"))
        command = self._command()
        self._num_hosts = command.num_hosts if num_hosts is None else num_hosts
        self._job = self._plan()

    def _command(self) -> TorchrunCommand:
        return parse_torchrun(self._words)

    def _plan(self) -> JobTrait:
        """The job that has the hosts."""
        if self._scheduler.startswith("local"):
            if self._num_hosts > 1:
                raise ValueError(
                    f"{self._num_hosts} hosts are wanted, and scheduler {self._scheduler!r} has one: give 'slurm'"
                )
            return LocalJob((_MESH,))
        if self._scheduler == "slurm":
            named = {_OPTIONS[key]: value for key, value in self._options.items() if key in _OPTIONS}
            others = [f"--{key}={value}" for key, value in self._options.items() if key not in _OPTIONS]
            arguments: dict[str, Any] = {**named, "slurm_args": others}  # SlurmJob checks them
            return SlurmJob({_MESH: self._num_hosts}, **arguments)
        raise ValueError(
            f"there is no scheduler {self._scheduler!r} here: give 'slurm', or 'local_cwd' for this machine"
        )

    def run_spmd(self) -> None:
        """Run the command on the job's hosts, and return when all ranks have ended.

        The ranks are fresh procs at each call, whose environment is torchrun's.

        Raises:
            ActorError: a rank's script raised it, or it is a `ScriptFailed`: the script exited with a status other
                than 0.
            SupervisionError: a rank's proc died.
        """
        command = self._command()
        with self.state(cached_path=None).workers.spawn_procs(
            per_host={"gpus": command.per_host}, env=self._env
        ) as procs:
            ranks = procs.spawn("spmd", SPMDActor)
            place = ranks.slice(**dict.fromkeys(procs.extent, 0)).get_host_port.call_one(None).get()
            ranks.main.call(*place, list(command.script)).get()

    def spec(self) -> Mapping[str, object]:
        """The command, and where it runs."""
        return {"command": self._words, "hosts": self._num_hosts, "scheduler": self._scheduler, **self._job.spec()}

    def alive(self) -> bool:
        """Whether the job still has its hosts, or is still waiting for them."""
        return self._job.active and self._job.alive()

    def _create(self, client_script: str | None) -> None:
        self._job.apply()

    def _state(self) -> JobState:
        return self._job.state(cached_path=None)

    def _kill(self) -> None:
        self._job.kill()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_job": self._job.__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._job = self._plan()
        self._job.__setstate__(state["_job"])


def serve(
    appdef: Sequence[str] | _AppDef, scheduler: str = "slurm", scheduler_cfg: Mapping[str, object] | None = None
) -> SPMDJob:
    """Request hosts for a command of torchrun; `SPMDJob.run_spmd` runs it there, again after each edit of the script.

    Args:
        appdef: the command as a list of words, ``["torchrun", "--nnodes=2", "--nproc-per-node=4", "train.py"]``; or an
            ``AppDef`` of torchx with one role, whose arguments are such a command and whose replicas are the hosts.
        scheduler: ``slurm``, or ``local_cwd`` for this machine alone.
        scheduler_cfg: options of sbatch, with long names: ``{"partition": "gpu", "time": "1:00:00"}``.

    Returns:
        The job, which was applied. `JobTrait.dump` and `job_load` keep it for the next program, and `kill` ends it.

    Raises:
        TypeError: an argument of another type.
        ValueError: the command is not torchrun's, there is more than one role, or no such scheduler here.
        AllocationError, SlurmError: the request failed.
    """
    if isinstance(appdef, _AppDef):
        if len(appdef.roles) != 1:
            raise ValueError(f"the application has {len(appdef.roles)} roles: one is run, on all hosts")
        (role,) = appdef.roles
        words = list(role.args)
        if role.entrypoint.startswith(("torchrun", "torch.distributed.run", "python")):
            words.insert(0, role.entrypoint)
        job = SPMDJob(words, role.num_replicas, scheduler, scheduler_cfg, role.env)
    else:
        check_instance("appdef", appdef, (list, tuple), "['torchrun', '--nproc-per-node=4', 'train.py']")
        job = SPMDJob(appdef, None, scheduler, scheduler_cfg)
    job.apply()
    return job
