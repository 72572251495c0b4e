"""The state of a job: a mesh of hosts for each name."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.arguments import check_mapping, check_number, check_text, check_variables
from monarch_hpc.job.telemetry import JobTelemetry, QueryEngineClient
from monarch_hpc.mesh.host import HostMesh

__all__ = ["JobState", "check_env", "check_meshes", "cut"]


class JobState:
    """The hosts of a job; each mesh is an attribute: ``state.trainers`` is the mesh called ``trainers``.

    Attributes:
        telemetry_url, admin_url: None; for moved programs: questions need no server.
    """

    telemetry_url: None = None
    admin_url: None = None

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)
        self._telemetry: JobTelemetry | None = None

    @property
    def query_engine_client(self) -> QueryEngineClient | None:
        """Answers questions in SQL about the job; None without `JobTrait.enable_telemetry`."""
        return None if self._telemetry is None else self._telemetry.client

    @property
    def dashboard_url(self) -> str | None:
        """Address of a dashboard on 127.0.0.1, with its token; None unless the job was given `include_dashboard`.

        The first use starts it, in a process that ends with the program.

        Raises:
            AllocationError: it does not start, or the program does not use the job's hosts any more.
        """
        return None if self._telemetry is None else self._telemetry.dashboard_url

    def offer_telemetry(self, dashboard_port: int | None) -> None:
        """Offer answers to questions and, on a preferred port if there is one, a dashboard."""
        for hosts in self._hosts.values():  # all of one allocation
            self._telemetry = JobTelemetry(hosts.allocation, dashboard_port)

    def __getattr__(self, name: str) -> HostMesh:
        try:
            return self.__dict__["_hosts"][name]  # type: ignore[no-any-return]  # set by the constructor
        except KeyError:
            known = ", ".join(sorted(self.__dict__.get("_hosts", ()))) or "none"
            raise AttributeError(f"the job has no mesh {name!r}; it has: {known}") from None

    def __repr__(self) -> str:
        return f"JobState({self._hosts})"


def check_meshes(meshes: object) -> dict[str, int]:
    """Check *meshes*, and return the number of hosts of each mesh by name.

    Raises:
        TypeError: *meshes* is not a mapping of names to whole numbers.
        ValueError: a mesh has no host.
    """
    given = check_mapping("meshes", meshes, "{'workers': 2}")
    return {name: check_number(f"meshes[{name!r}]", num, least=1) for name, num in given.items()}


def check_env(env: object) -> dict[str, str]:
    """Check *env*, and return the variables by name; empty for None.

    Raises:
        TypeError: *env* is not a mapping of names to strings or paths.
        ValueError: a name or value that the environment of a process cannot hold.
    """
    variables = {} if env is None else check_variables("env", env)
    return {name: check_text(f"env[{name!r}]", value) for name, value in variables.items()}


def cut(hosts: HostMesh, meshes: Mapping[str, int]) -> JobState:
    """Divide *hosts* among *meshes*, in order.

    Args:
        hosts: a mesh with the dimension ``hosts``.
        meshes: number of hosts by mesh name.

    Raises:
        ValueError: there are too few hosts.
    """
    needed = sum(meshes.values())
    if len(hosts) < needed:
        raise ValueError(f"the meshes {dict(meshes)} need {needed} hosts, there are {len(hosts)}")
    found: dict[str, HostMesh] = {}
    first = 0
    for name, num in meshes.items():
        found[name] = hosts.slice(hosts=slice(first, first + num))
        first += num
    return JobState(found)
