"""A job whose hosts are a Slurm allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.arguments import check_flag, check_number, check_path, check_seconds, check_text, check_texts
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.units import parse_duration
from monarch_hpc.job.state import JobState, check_meshes, cut
from monarch_hpc.job.trait import JobTrait
from monarch_hpc.mesh.current import hosts
from monarch_hpc.mesh.host import all_hosts
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.slurm import AllocationRecord, Allocations, Request, Stage, exclude_bad_hosts, plan_job_flags

__all__ = ["SlurmJob"]

_log = Logger(__name__)


class SlurmJob(JobTrait):
    """A job with one Slurm allocation for all meshes.

    The allocation is made as by `monarch-hpc alloc`: `monarch-hpc status`, `logs` and `release` work on it. It outlives
    the program, and the next program with the same specification finds it through the saved file; `kill` gives it back.
    In a program that `monarch-hpc run` started on an allocation, the job is that allocation.

    Args:
        meshes: number of hosts by mesh name.
        python_exe: interpreter on the hosts; ``python`` stands for config key `agent.python`.
        slurm_args: further options of sbatch, each beginning with ``-``.
        job_name: name of the allocation; the default gets a random suffix.
        time_limit: in Slurm's notation, ``1:30:00``; None for config key `slurm.time_min`.
        partition, account, qos: None for the configured value.
        exclusive: whether to allocate whole hosts.
        gpus_per_node, cpus_per_task, mem: resources of each host, in sbatch's notation; None requests nothing.
        job_start_timeout: seconds to wait for the job to start; None waits as long as it is queued.
        ntasks_per_node: must be 1: there is one agent on each host.
        monarch_port, log_dir, out_of_cluster, attach_to, bind_to: for moved programs, without effect: agents listen on
            free ports of the interfaces in `fabric.interfaces`, their output is in ``monarch-hpc logs NAME``, and a
            program outside the cluster finds a route by itself.

    Raises:
        TypeError: an argument of another type; also if *slurm_args* is a single string.
        ValueError: a mesh has no host, a number or text is out of range, an option does not begin with ``-``, or
            *ntasks_per_node* is not 1.
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = "python",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        gpus_per_node: int | str | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool = False,
        attach_to: str | None = None,
        bind_to: str | None = None,
    ) -> None:
        super().__init__()
        strays = [
            option for option in check_texts("slurm_args", slurm_args, "['--mem=0']") if not option.startswith("-")
        ]
        if strays:
            raise ValueError(f"slurm_args holds {strays[0]!r}, which sbatch would not take for an option: write --...")
        check_text("job_name", job_name)
        check_path("python_exe", python_exe)
        texts = {"time_limit": time_limit, "partition": partition, "account": account, "qos": qos, "mem": mem}
        for option, text in texts.items():
            if text is not None:
                check_text(option, text, filled=True)
        if time_limit is not None:
            parse_duration(time_limit)
        check_flag("exclusive", exclusive)
        if gpus_per_node is not None and not isinstance(gpus_per_node, str):
            check_number("gpus_per_node", gpus_per_node, least=0)
        if cpus_per_task is not None:
            check_number("cpus_per_task", cpus_per_task, least=1)
        if job_start_timeout is not None:
            job_start_timeout = check_seconds("job_start_timeout", job_start_timeout)
        if ntasks_per_node != 1:
            raise ValueError(f"ntasks_per_node is {ntasks_per_node}: a host has one agent; for procs use per_host")
        self._meshes: dict[str, int] = {}
        for name, num in check_meshes(meshes).items():
            self.add_mesh(name, num)
        self._job_name = job_name
        self._options = {
            "python_exe": python_exe,
            "slurm_args": list(slurm_args),
            "time_limit": time_limit,
            "partition": partition,
            "exclusive": exclusive,
            "gpus_per_node": None if gpus_per_node is None else str(gpus_per_node),
            "cpus_per_task": cpus_per_task,
            "mem": mem,
            "account": account,
            "qos": qos,
        }
        self._start_timeout_s = job_start_timeout
        self._name = ""

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """Add a mesh to the specification, before the job is applied.

        Args:
            name: name of the mesh; an earlier mesh of that name is replaced.
            num_nodes: number of hosts.

        Raises:
            TypeError: an argument of another type.
            ValueError: *num_nodes* is below 1.
            RuntimeError: the job has been applied.
        """
        num_nodes = check_meshes({name: num_nodes})[name]
        if self.active:
            raise RuntimeError(f"mesh {name!r} comes too late: the job has been applied already")
        self._meshes[name] = num_nodes

    def spec(self) -> Mapping[str, object]:
        """The number of hosts of each mesh, and the options of sbatch."""
        return {"meshes": self._meshes, **self._options}

    def alive(self) -> bool:
        """Whether Slurm still has the job, queued or running."""
        if not self._name:
            return False
        record = _find(self._open()[0], self._name)
        return record is not None and record.live

    def _config(self) -> Config:
        limit = self._options["time_limit"]
        python = self._options["python_exe"]
        return load(
            {
                # Slurm counts in minutes; round up.
                "slurm.time_min": None if limit is None else -(-parse_duration(str(limit)) // 60),
                "slurm.partition": self._options["partition"],
                "slurm.qos": self._options["qos"],
                "slurm.account": self._options["account"],
                "agent.python": None if python == "python" else python,
            }
        ).config

    def _open(self) -> tuple[Allocations, Config]:
        config = self._config()
        allocations = Allocations.open(config)
        allocations.reconcile()
        return allocations, config

    def _create(self, client_script: str | None) -> None:
        if read_program().directory is not None:
            return  # the program runs on an allocation already
        allocations, config = self._open()
        allocation = new_allocation_id()
        name = f"{self._job_name}-{allocation[:4]}" if self._job_name == "monarch_job" else self._job_name
        request = Request(
            allocation=allocation,
            name=name,
            directory=config.paths.shared / allocation[:8],
            num_hosts=str(sum(self._meshes.values())),
            gpus_per_node=None if self._options["gpus_per_node"] is None else str(self._options["gpus_per_node"]),
            options=tuple(self._flags()),
        )
        excluded, _ = exclude_bad_hosts(config, plan_job_flags(config, request))
        request, plan = allocations.plan(replace(request, options=(*request.options, *excluded)))
        for note in plan.notes:
            _log.warning("%s", note)
        self._name = allocations.submit(request).short_id

    def _flags(self) -> Sequence[str]:
        options = self._options
        given = [
            f"--{flag}={options[key]}"
            for flag, key in (("mem", "mem"), ("cpus-per-task", "cpus_per_task"))
            if options[key]
        ]
        extra = options["slurm_args"]
        assert isinstance(extra, list)
        return [*(["--exclusive"] if options["exclusive"] else []), *given, *extra]

    def _state(self) -> JobState:
        if read_program().directory is not None:
            return cut(hosts().apart(), self._meshes)
        allocations, _ = self._open()
        record = _find(allocations, self._name)
        if record is None or record.ended is not None:
            ended = "" if record is None or record.ended is None else f": {record.ended.state}: {record.ended.reason}"
            raise AllocationError(self._name, f"has ended{ended}; kill() this job and apply it again")
        started = Deadline(float("inf") if self._start_timeout_s is None else self._start_timeout_s)
        late: list[bool] = []

        def look(life: object) -> None:
            late[:] = [getattr(life, "granted", None) is None and started.passed()]

        life = allocations.follow(record, look, lambda: bool(late and late[0]))
        if life.stage is not Stage.READY:
            raise AllocationError(
                record.name,
                f"did not begin within {self._start_timeout_s:g} s ({life.reason or 'Slurm gave no reason'}); it still "
                "waits in the queue: call state() again, or kill()",
            )
        controller = Controller.instance()
        tenancy = controller.tenancies.at(record.directory, record.name)
        return cut(all_hosts(controller.door, tenancy.allocation).apart(), self._meshes)

    def _kill(self) -> None:
        if not self._name:
            return
        allocations, config = self._open()
        record = _find(allocations, self._name)
        if record is not None and record.live:
            Controller.leave(record.directory)
            allocations.release(record, partial(shut_down, timeout_s=config.procs.stop_s))
        self._name = ""


def _find(allocations: Allocations, short_id: str) -> AllocationRecord | None:
    """The record of an allocation, by the first digits of its uuid; None if the registry has none."""
    return next((record for record in allocations.registry.records() if record.short_id == short_id), None)
