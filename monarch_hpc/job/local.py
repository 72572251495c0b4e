"""A job of the machine that the program runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.config.program import read_program
from monarch_hpc.core.arguments import check_texts
from monarch_hpc.job.state import JobState
from monarch_hpc.job.trait import JobTrait
from monarch_hpc.mesh.host import this_host
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.program.opening import open_embedded

__all__ = ["LocalJob"]


class LocalJob(JobTrait):
    """Each of its meshes is `this_host()`: the same program on one machine, for trying it out.

    Args:
        hosts: names of the meshes.

    Raises:
        TypeError: *hosts* is not a list of strings.
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self._names = list(check_texts("hosts", hosts, "['trainers', 'readers']"))

    def spec(self) -> Mapping[str, object]:
        """The names of the meshes."""
        return {"hosts": tuple(self._names)}

    def alive(self) -> bool:
        """No: it is the program's own, and a saved one is nothing."""
        return False

    def _create(self) -> None:
        """There is nothing to ask for."""

    def _state(self) -> JobState:
        if Runtime.current is None and read_program().directory is None:
            Controller.instance(open_embedded)  # and not the hosts of a Slurm job that the program may run in
        host = this_host()
        return JobState(dict.fromkeys(self._names, host))

    def _kill(self) -> None:
        """There is nothing to give back."""
