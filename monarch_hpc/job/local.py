"""A job on the machine that the program runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.config.program import read_program
from monarch_hpc.core.arguments import check_texts
from monarch_hpc.job.state import JobState
from monarch_hpc.job.trait import JobTrait
from monarch_hpc.mesh.current import this_host
from monarch_hpc.mesh.program.controller import Controller

__all__ = ["LocalJob"]


class LocalJob(JobTrait):
    """A job in which every mesh is `this_host()`, to try a program out on one machine.

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
        """False: the hosts end with the program, so a saved job has none."""
        return False

    def _create(self, client_script: str | None) -> None:
        """Do nothing: there is nothing to request."""

    def _state(self) -> JobState:
        if read_program().directory is None:
            Controller.instance().tenancies.here()  # even inside a Slurm job, whose hosts `this_host` would use
        host = this_host().apart()
        return JobState(dict.fromkeys(self._names, host))

    def _kill(self) -> None:
        """Do nothing: there is nothing to give back."""
