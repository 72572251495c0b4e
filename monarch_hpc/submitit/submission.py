"""The files of a submission, beside submitit's own in the user's folder: its order, and the states of its jobs.

ID_monarch_hpc.json   the order: what the jobs need, and which service on which allocation has them
ID_monarch_hpc.states a line of JSON for each change of a job's state, by the service

Write access to the order or a pickle there means running code as the user: all of these files are 0600.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

from monarch_hpc.allocation.document import Document
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.submitit.pickles import open_private

__all__ = [
    "StateChange",
    "Submission",
    "append_states",
    "order_path",
    "read_states",
    "read_submission",
    "states_path",
    "write_submission",
]


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of submit, or of map_array.

    Attributes:
        id: its name, and the first part of its jobs' ids; random.
        folder: submitit's folder, which may hold ``%j``.
        num_jobs: jobs of the array; 0 for one job that is not in an array.
        num_hosts: hosts of each job.
        tasks_per_host: processes on each host.
        cpus_per_task: processors that are kept for each process.
        gpus_per_host: GPUs on each host, which its processes share.
        memory_bytes: memory that is kept on each host; 0 if the job has not said.
        parallelism: most jobs of the array that run at the same time.
        timeout_s: longest time of a job, from its start.
        notice_s: how long before the end of that time the job gets its signal.
        merged: whether the error stream goes to the file of standard output.
        argv: the command line of the interpreter.
        cwd: the working folder of the jobs.
        umask: their mask for the modes of new files.
        environment: the file with their variables.
        allocation: the name of the allocation; its directory's if it has none.
        directory: the allocation's directory.
        run: the run of the service.
    """

    id: str
    folder: str
    num_jobs: int
    num_hosts: int
    tasks_per_host: int
    cpus_per_task: int
    gpus_per_host: int
    memory_bytes: int
    parallelism: int
    timeout_s: float
    notice_s: float
    merged: bool
    argv: tuple[str, ...]
    cwd: str
    umask: int
    environment: str
    allocation: str
    directory: str
    run: str

    @property
    def place(self) -> Path:
        """The folder of the submission's files: the part of *folder* that is the same for all jobs."""
        parts = Path(self.folder).parts
        variable = next((at for at, part in enumerate(parts) if "%" in part), len(parts))
        return Path(*parts[:variable])

    def job_id(self, index: int) -> str:
        """The id of a job of the array."""
        return f"{self.id}_{index}" if self.num_jobs else self.id

    @property
    def indices(self) -> range:
        """The numbers of its jobs; 0 for one that is not in an array."""
        return range(self.num_jobs or 1)


@dataclass(frozen=True, slots=True)
class StateChange:
    """A line of the file of states.

    Attributes:
        index: the job's number in its array; 0 if it is not in one.
        state: as Slurm calls it.
        why: the reason in words; may be empty.
        hosts: names of the job's hosts.
        results: ranks that have left a result.
    """

    index: int
    state: str
    why: str = ""
    hosts: tuple[str, ...] = ()
    results: tuple[int, ...] = ()


def order_path(place: Path, submission: str) -> Path:
    """The file of a submission's order."""
    return place / f"{submission}_monarch_hpc.json"


def states_path(place: Path, submission: str) -> Path:
    """The file of a submission's states."""
    return place / f"{submission}_monarch_hpc.states"


def write_submission(submission: Submission) -> Path:
    """Write the order, whole or not at all; return its path."""
    path = order_path(submission.place, submission.id)
    scratch = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    with open(scratch, "w", opener=open_private) as file:
        file.write(json.dumps(dataclasses.asdict(submission), indent=1) + "\n")
    os.replace(scratch, path)
    return path


def read_submission(path: Path) -> Submission:
    """Read an order.

    Raises:
        ConfigError: it is malformed.
        FileNotFoundError: there is no such order.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    document = Document(parsed, str(path))
    values: dict[str, object] = {}
    for field in dataclasses.fields(Submission):
        value = document.fields.get(field.name)
        fits = {
            "str": isinstance(value, str),
            "int": type(value) is int,
            "float": isinstance(value, int | float),
            "bool": isinstance(value, bool),
            "tuple[str, ...]": isinstance(value, list) and all(isinstance(word, str) for word in value),
        }
        if not fits[str(field.type)]:
            raise document.unreadable(field.name)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return Submission(**values)  # type: ignore[arg-type]  # checked above, field by field


def append_states(submission: Submission, changes: Iterable[StateChange]) -> None:
    """Append lines to the file of states, which is closed after that: only then do other hosts see them.

    Raises:
        OSError: the system refused.
    """
    lines = "".join(json.dumps(dataclasses.asdict(change)) + "\n" for change in changes)
    with open(states_path(submission.place, submission.id), "a", opener=open_private) as file:
        file.write(lines)


def read_states(path: Path, offset: int) -> tuple[list[StateChange], int]:
    """Read the lines from *offset* on that are whole; return them, and the offset of the next."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    changes = []
    for line in whole.splitlines():
        try:
            fields = Document(json.loads(line), str(path))
        except (ValueError, RecursionError):  # damaged
            continue
        results = fields.fields.get("results")
        changes.append(
            StateChange(
                fields.whole("index"),
                fields.text("state"),
                fields.text("why"),
                tuple(fields.texts("hosts")),
                tuple(results) if isinstance(results, list) else (),
            )
        )
    return changes, offset + len(whole)
