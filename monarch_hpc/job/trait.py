"""Jobs: what hosts a program wants, written down once, and found again by the next program."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from monarch_hpc.core.arguments import check_path
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.files import open_folder, read_private, write_private
from monarch_hpc.core.logger import Logger
from monarch_hpc.job.seal import break_seal, seal
from monarch_hpc.job.state import JobState

__all__ = ["DEFAULT_JOB_PATH", "JobTrait", "TelemetryConfig", "job_load", "job_loads"]

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
"""By its name in Monarch; it holds no pickle but JSON, see `seal`."""

_MAX_BYTES = 1 << 20
"""Of a saved job: a few names and numbers."""

_SCHEMA = 1

_log = Logger(__name__)


@dataclass(frozen=True)
class TelemetryConfig:
    """For moved programs: every process records its calls here from the start, and nothing has to be set up."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


class JobTrait(ABC):
    """A specification of hosts, and, once applied, the job that holds them.

    `state` finds the job of an earlier program in a file, or applies the specification, and gives its hosts. Nothing
    but `kill` ends a job that lives: where the file's job differs from the specification, that is an error.
    """

    def __init__(self) -> None:
        self._apply_id: str | None = None

    # ---- what a program asks ----

    @property
    def active(self) -> bool:
        """Whether the job was applied, here or by the program whose job was found."""
        return self._apply_id is not None

    @property
    def apply_id(self) -> str | None:
        """A name of this life of the job; None before it is applied."""
        return self._apply_id

    def apply(self, client_script: str | None = None) -> None:
        """Ask for the hosts, unless that was done.

        Args:
            client_script: not taken: run a program on the hosts of a batch job with `monarch-hpc run` in its script.

        Raises:
            NotImplementedError: a *client_script* was given.
            AllocationError, SlurmError: the hosts cannot be had.
        """
        if client_script is not None:
            raise NotImplementedError(
                f"apply() starts no client; for a batch job write 'monarch-hpc run {client_script}' into the batch "
                "script and submit that: the program finds the hosts of its own job"
            )
        if self._apply_id is None:
            self._create()
            self._apply_id = str(uuid.uuid4())

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """The hosts, once they are ready; applies the job if it was not.

        Args:
            cached_path: where the job is saved, for the next program that asks for the same. None saves nothing: what
                this program applies then ends with it, unless that is an allocation, which `kill` ends.

        Raises:
            AllocationError: the saved job lives and differs from this one: the error says where. Nothing was changed.
            JobFailed: it ended before its hosts were ready.
        """
        if cached_path is not None:
            cached_path = check_path("cached_path", cached_path)
        if self._apply_id is None and cached_path is not None:
            self._find(Path(cached_path))
        if self._apply_id is None:
            self.apply()
            if cached_path is not None:
                self.dump(cached_path)  # before anything is waited for: nobody else knows of it
            else:
                self._end_with_program()
        return self._state()

    def kill(self) -> None:
        """End the job and give its hosts back; nothing happens where there is none."""
        if self._apply_id is not None:
            self._kill()
            self._apply_id = None

    def enable_telemetry(self, config: TelemetryConfig | None = None, **settings: Any) -> Self:
        """For moved programs: checked, and without effect. See `TelemetryConfig`."""
        if config is None:
            TelemetryConfig(**settings)
        return self

    # ---- saving ----

    def dump(self, filename: str) -> None:
        """Save the job, readable by its owner only.

        Raises:
            ConfigError: the folder is a link, or other users may write there.
            TypeError: as `dumps`.
        """
        path = Path(filename).absolute()
        os.close(open_folder(path.parent, make=True))
        write_private(path, self.dumps())

    def dumps(self) -> bytes:
        """The job as bytes, for this user's programs. Where it would have ended with this one, it does not any more.

        Raises:
            TypeError: its `__getstate__` gives more than texts, numbers, lists and dicts.
        """
        if self._apply_id is not None:
            self._outlive_program()
        try:
            return seal({"schema": _SCHEMA, "job": _name(type(self)), "state": self.__getstate__()})
        except (TypeError, ValueError) as error:
            advice = "let its __getstate__ give, and its __setstate__ take, texts, numbers, lists and dicts"
            raise TypeError(f"a {type(self).__name__} cannot be saved as JSON: {error}; {advice}") from error

    def _find(self, path: Path) -> None:
        """Become the job saved at *path*, if it lives and is the same."""
        try:
            saved = job_load(str(path))
        except FileNotFoundError:
            return
        if not saved.active or not saved.alive():
            _log.info("the job saved in %s has ended", path)
            if saved.active:
                saved._clear()
            return
        differences = saved.differences(self)
        if differences:
            raise AllocationError(
                str(path),
                f"holds a {type(saved).__name__} that lives and differs: {'; '.join(differences)}. Go back to what it "
                f"is, end it with job_load({str(path)!r}).kill(), or give another cached_path",
            )
        self.__setstate__(saved.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def differences(self, wanted: JobTrait) -> list[str]:
        """In words, what *wanted* asks for that this job does not have."""
        if type(wanted) is not type(self):
            return [f"a {type(wanted).__name__} is wanted"]
        mine, theirs = self.spec(), wanted.spec()
        return [
            f"{key} is {mine.get(key)!r}, wanted is {theirs[key]!r}" for key in theirs if theirs[key] != mine.get(key)
        ]

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job lives and has what *spec* asks for."""
        return self.active and self.alive() and not self.differences(spec)

    # ---- what each kind of job says ----

    @abstractmethod
    def spec(self) -> Mapping[str, object]:
        """What was asked for, by name."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether what was applied still holds its hosts."""

    @abstractmethod
    def _create(self) -> None:
        """Ask for the hosts."""

    @abstractmethod
    def _state(self) -> JobState:
        """Wait for the hosts and attach to them."""

    @abstractmethod
    def _kill(self) -> None:
        """Give the hosts back."""

    def _end_with_program(self) -> None:  # noqa: B027 an allocation does not
        """What nobody can find again ends with this program, where that is cheap to begin anew."""

    def _outlive_program(self) -> None:  # noqa: B027 an allocation does anyway
        """What was saved can be found again, and so does not end with this program."""

    def _clear(self) -> None:  # noqa: B027 an allocation leaves nothing here
        """Remove what a job that has ended by itself left on this machine."""


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job that `JobTrait.dump` saved.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: others may have written the file, or exchanged it.
        TypeError: as `job_loads`.
    """
    path = Path(filename).absolute()
    return _unseal(read_private(path, _MAX_BYTES), str(path))


def job_loads(data: bytes) -> JobTrait:
    """The job that `JobTrait.dumps` gave.

    Raises:
        ConfigError: a program of another user gave these bytes, or they were changed.
        TypeError: the job is of a class that this program has not imported.
    """
    return _unseal(data, "the bytes of a job")


def _unseal(data: bytes, source: str) -> JobTrait:
    document = break_seal(data, source)
    # Never imported by a name that a file gives: what a program has not loaded does not run for it.
    kind = _kinds().get(document["job"])
    if kind is None:
        raise TypeError(f"{source}: holds a {document['job']}, which this program has not imported: import it first")
    job = kind.__new__(kind)
    job.__setstate__(document["state"])
    return job


def _kinds() -> dict[str, type[JobTrait]]:
    """All classes of jobs that are loaded, by name."""
    found: dict[str, type[JobTrait]] = {}
    left = JobTrait.__subclasses__()
    while left:
        kind = left.pop()
        found[_name(kind)] = kind
        left += kind.__subclasses__()
    return found


def _name(kind: type[JobTrait]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
