"""The base class of jobs: a specification of hosts that can be saved, and found again by the next program."""

from __future__ import annotations

import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from monarch_hpc.core.arguments import check_flag, check_instance, check_number, check_path
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.files import open_folder, read_private, write_once, write_private
from monarch_hpc.core.text.moved import row
from monarch_hpc.job.seal import break_seal, seal
from monarch_hpc.job.state import JobState

__all__ = ["DEFAULT_JOB_PATH", "JobTrait", "MeshAdminConfig", "TelemetryConfig", "job_load", "job_loads"]

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
"""Named as in Monarch; the file holds JSON instead of a pickle, see `seal`."""

_MAX_BYTES = 1 << 20
"""Size limit of a saved job, which holds a few names and numbers."""

_SCHEMA = 1

_log = Logger(__name__)


@dataclass(frozen=True)
class TelemetryConfig:
    """Settings of a job's telemetry. Every process records its calls from the start, with and without them.

    Attributes:
        retention_secs: for moved programs, without effect: processes keep their latest records, see docs/telemetry.md.
        include_dashboard: whether `JobState.dashboard_url` starts a dashboard.
        dashboard_port: its port, if that is free; 0 for any.
        snapshot_interval_secs: for moved programs, without effect.
    """

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0

    def __post_init__(self) -> None:
        check_flag("include_dashboard", self.include_dashboard)
        check_number("dashboard_port", self.dashboard_port, least=0, most=65535)


@dataclass(frozen=True)
class MeshAdminConfig:
    """For moved programs, without effect: `monarch-hpc status` shows hosts, procs and calls without a server.

    Attributes:
        admin_addr: address of a server, there.
    """

    admin_addr: str | None = None


class JobTrait(ABC):
    """A specification of hosts and, once applied, the job that holds them.

    `state` finds the job of an earlier program in a file, or else applies the specification, and returns the hosts.
    Only `kill` ends a job that lives: if the saved job differs from the specification, `state` raises.
    """

    _dashboard_port: int | None = None
    _with_telemetry = False

    def __init__(self) -> None:
        self._apply_id: str | None = None

    # ---- the interface for programs ----

    @property
    def active(self) -> bool:
        """Whether the job was applied, by this program or by the one that saved it."""
        return self._apply_id is not None

    @property
    def apply_id(self) -> str | None:
        """Unique id of this application of the job; None before it is applied."""
        return self._apply_id

    def apply(self, client_script: str | None = None) -> None:
        """Request the hosts, unless the job was applied already; does not wait for them.

        Args:
            client_script: not supported: to run a program in a batch job, write `monarch-hpc run` into its script.

        Raises:
            NotImplementedError: *client_script* was given.
            AllocationError, SlurmError: the request failed.
        """
        if client_script is not None:
            raise NotImplementedError(
                f"apply() starts no client; for a batch job write 'monarch-hpc run {client_script}' into the batch "
                "script and submit that: the program finds the hosts of its own job"
            )
        if self._apply_id is None:
            self._create(None)
            self._apply_id = str(uuid.uuid4())

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Wait until the hosts are ready and return them; applies the job first if necessary.

        Args:
            cached_path: file in which the job is saved, for the next program with the same specification. Of programs
                that start at once, all use the job that was saved first. None saves nothing: the hosts then end with
                this program, except for a Slurm allocation, which `kill` ends.

        Raises:
            AllocationError: the saved job lives and differs from this one, and nothing was changed; or the job has
                ended, or was not ready in time.
            ConfigError: other users may have written the saved job.
            JobFailed: the Slurm job ended before its hosts were ready.
            TypeError: *cached_path* is not a path, or the saved job's class is not imported.
        """
        if cached_path is not None:
            cached_path = check_path("cached_path", cached_path)
        ended = None
        if self._apply_id is None and cached_path is not None:
            ended = self._find(Path(cached_path))
        if self._apply_id is None:
            self.apply()
            if cached_path is not None:
                # Before waiting: if this program dies, the file is the only trace of the job.
                self._save_first(Path(cached_path), ended)
            else:
                self._end_with_program()
        state = self._state()
        if self._with_telemetry:
            state.offer_telemetry(self._dashboard_port)
        return state

    def kill(self) -> None:
        """End the job and give its hosts back; does nothing if the job was not applied."""
        if self._apply_id is not None:
            self._kill()
            self._apply_id = None

    def enable_telemetry(self, config: TelemetryConfig | None = None, **settings: Any) -> Self:
        """Have `state` return a `JobState` with `query_engine_client` and, if it is asked for, `dashboard_url`.

        Args:
            config: the settings.
            **settings: fields of `TelemetryConfig`, if *config* is None.

        Raises:
            TypeError: `TelemetryConfig` has no such field, or one is of another type.
            ValueError: the port of the dashboard is none.
        """
        if config is None:
            config = TelemetryConfig(**settings)
        check_instance("config", config, TelemetryConfig, "TelemetryConfig()")
        self._with_telemetry = True
        self._dashboard_port = config.dashboard_port if config.include_dashboard else None
        return self

    def enable_admin(self, config: MeshAdminConfig | None = None, **settings: Any) -> Self:
        """For moved programs, without effect, as a warning says; see `MeshAdminConfig`.

        Args:
            config: the settings.
            **settings: fields of `MeshAdminConfig`, if *config* is None.

        Raises:
            TypeError: `MeshAdminConfig` has no such field.
        """
        if config is None:
            MeshAdminConfig(**settings)
        _log.warning("enable_admin() starts no server here: 'monarch-hpc status' shows hosts, procs and calls")
        return self

    # ---- saving ----

    def dump(self, filename: str) -> None:
        """Save the job to a file that only this user can read. Its workers or allocation then outlive this program.

        Raises:
            ConfigError: the folder is a link, or other users may write there.
            TypeError: as for `dumps`.
        """
        path = Path(filename).absolute()
        os.close(open_folder(path.parent, make=True))
        write_private(path, self.dumps())

    def dumps(self) -> bytes:
        """Serialize the job for other programs of this user. Its workers or allocation then outlive this program.

        Raises:
            TypeError: `__getstate__` returns other values than strings, numbers, lists and dicts.
        """
        if self._apply_id is not None:
            self._outlive_program()
        try:
            return seal({"schema": _SCHEMA, "job": _name(type(self)), "state": self.__getstate__()})
        except (TypeError, ValueError) as error:
            advice = "let its __getstate__ return, and its __setstate__ take, strings, numbers, lists and dicts"
            raise TypeError(f"a {type(self).__name__} cannot be saved as JSON: {error}; {advice}") from error

    def _find(self, path: Path) -> bytes | None:
        """Take over the job saved at *path*, if it lives and has the same specification.

        Returns:
            What the file holds if that job has ended; else None.
        """
        try:
            packed = read_private(path.absolute(), _MAX_BYTES)
        except FileNotFoundError:
            return None
        saved = _unseal(packed, str(path.absolute()))
        if not saved.active or not saved.alive():
            _log.info("the job saved in %s has ended", path)
            if saved.active:
                saved._clear()
            return packed
        differences = saved.differences(self)
        if differences or not saved.can_run(self):
            differences = differences or ["it says that it cannot run this one"]
            raise AllocationError(
                str(path),
                f"holds a {type(saved).__name__} that lives and differs: {'; '.join(differences)}. Ask for the same "
                f"again, end it with job_load({str(path)!r}).kill(), or give another cached_path {row('changed jobs')}",
            )
        mine = self._with_telemetry, self._dashboard_port  # no part of the specification
        self.__setstate__(saved.__getstate__())
        self._with_telemetry, self._dashboard_port = mine
        return None

    def _save_first(self, path: Path, ended: bytes | None) -> None:
        """Save this job, which was just applied; if another program was faster, give it back and use that program's.

        Args:
            ended: what the file was before, if it was that of a job that had ended.
        """
        path = path.absolute()
        os.close(open_folder(path.parent, make=True))
        mine = self.dumps()
        with contextlib.suppress(FileNotFoundError):
            if read_private(path, _MAX_BYTES) == ended:
                path.unlink()
        write_once(path, mine)
        if read_private(path, _MAX_BYTES) != mine:
            self.kill()
            self._find(path)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def differences(self, wanted: JobTrait) -> list[str]:
        """The differences between this job and the specification of *wanted*, in words; empty if there are none."""
        if type(wanted) is not type(self):
            return [f"a {type(wanted).__name__} is wanted"]
        mine, theirs = self.spec(), wanted.spec()
        return [
            f"{key} is {mine.get(key)!r}, wanted is {theirs[key]!r}" for key in theirs if theirs[key] != mine.get(key)
        ]

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job lives and fulfils the specification of *spec*."""
        return self.active and self.alive() and not self.differences(spec)

    # ---- the interface that each kind of job implements ----

    def spec(self) -> Mapping[str, object]:
        """The specification of the job, by name; empty where `can_run` alone compares jobs, as in Monarch's."""
        return {}

    def alive(self) -> bool:
        """Whether the applied job still has its hosts, or is still waiting for them.

        By default `can_run` is asked, with the job itself as the specification; a job without its own `can_run` is
        taken to be alive.
        """
        return type(self).can_run is JobTrait.can_run or self.can_run(self)

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Request the hosts.

        Args:
            client_script: None; for jobs written for Monarch.
        """

    @abstractmethod
    def _state(self) -> JobState:
        """Wait for the hosts and attach to them."""

    @abstractmethod
    def _kill(self) -> None:
        """Give the hosts back."""

    def _end_with_program(self) -> None:  # noqa: B027 an allocation does not
        """Have the hosts end with this program: the job was not saved, so no other program can find it."""

    def _outlive_program(self) -> None:  # noqa: B027 an allocation does anyway
        """Let the hosts outlive this program: the job was saved, so another program can find it."""

    def _clear(self) -> None:  # noqa: B027 an allocation leaves nothing here
        """Remove the remains on this machine of a job that has ended by itself."""


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """Load the job that `JobTrait.dump` saved.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: other users may have written or replaced the file.
        TypeError: as for `job_loads`.
    """
    path = Path(filename).absolute()
    return _unseal(read_private(path, _MAX_BYTES), str(path))


def job_loads(data: bytes) -> JobTrait:
    """Load the job that `JobTrait.dumps` serialized.

    Raises:
        ConfigError: another user serialized the job, or *data* was changed.
        TypeError: the class of the job is not imported in this program.
    """
    return _unseal(data, "the bytes of a job")


def _unseal(data: bytes, source: str) -> JobTrait:
    document = break_seal(data, source)
    # A name in a file never causes an import: the file cannot run code that the program has not loaded itself.
    kind = _kinds().get(document["job"])
    if kind is None:
        raise TypeError(f"{source}: holds a {document['job']}, which this program has not imported: import it first")
    job = kind.__new__(kind)
    job.__setstate__(document["state"])
    return job


def _kinds() -> dict[str, type[JobTrait]]:
    """All job classes that are loaded, by qualified name."""
    found: dict[str, type[JobTrait]] = {}
    left = JobTrait.__subclasses__()
    while left:
        kind = left.pop()
        found[_name(kind)] = kind
        left += kind.__subclasses__()
    return found


def _name(kind: type[JobTrait]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
