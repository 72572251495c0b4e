"""`monarch-hpc report`: packs what a help desk needs to know into one archive, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

import monarch_hpc
from monarch_hpc.cli.checks.redaction import redact
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.config import as_document
from monarch_hpc.config.load import Loaded
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.core.version import PYTHON_VERSION, __version__
from monarch_hpc.slurm import AllocationRecord, Allocations, look
from monarch_hpc.slurm.commands.argv import show_job_argv

__all__ = ["command"]

_QUERY_S = 8.0
# The end of each text; a dozen of them stay below the 5 MB that help desks accept by mail.
_PART_BYTES = 256 << 10
_NUM_TRACEBACKS = 3
# These hold what a user wrote, and so anything: only their number is told.
_UNTOLD = ("agent.prologue", "agent.env", "slurm.extra")


@click.command()
@click.argument("name", required=False)
@click.option("--output", "target", metavar="FILE", help="The archive; monarch-hpc-report-DATE.tar.gz if left out.")
@output_options
def command(name: str | None, target: str | None) -> int:
    """Pack an archive for the help desk, without secrets.

    It has versions, the configuration, Slurm's words on the job and its hosts, the agents' log, and the latest
    tracebacks; no output of programs, no key, no value of a variable. Read it before you send it.
    """
    loaded = load_for_command({})
    allocations = Allocations.open(loaded.config, _QUERY_S)
    record = allocations.find(name) if name is not None or allocations.registry.records() else None
    parts = {
        label: redact(text, os.environ).encode()[-_PART_BYTES:]
        for label, text in (*_about(loaded, allocations), *(() if record is None else _allocation(allocations, record)))
    }
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path(target or f"monarch-hpc-report-{stamp}.tar.gz").absolute()
    data = _packed(f"monarch-hpc-report-{stamp}", parts)
    write_private(path, data)
    lines = [f"{path}  {len(data)} bytes", *(f"  {label}" for label in parts), "read it before you send it"]
    document = {"path": str(path), "num_bytes": len(data), "parts": list(parts)}
    current_output().show(document, "\n".join(lines), [str(path)])
    return 0


def _about(loaded: Loaded, allocations: Allocations) -> Iterator[tuple[str, str]]:
    slurm = allocations.slurm
    try:
        version = slurm.version()
    except MonarchError as error:
        version = str(error)
    about = {
        "monarch_hpc": __version__,
        "folder": str(Path(monarch_hpc.__file__).parent),
        "python": PYTHON_VERSION,
        "system": platform.platform(),
        "machine": platform.machine(),
        "slurm": version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    yield "about.json", json.dumps(about, indent=1)
    yield "configuration.txt", "\n".join(_configuration(loaded)) + "\n"
    tracebacks = sorted((loaded.config.paths.state / "tracebacks").glob("*.txt"))
    for path in tracebacks[-_NUM_TRACEBACKS:]:
        yield f"tracebacks/{path.name}", _tail(path)


def _configuration(loaded: Loaded) -> Iterator[str]:
    for key, value in _flat(as_document(loaded.config), ""):
        origin = loaded.origin(key)
        if any(key == untold or key.startswith(f"{untold}.") for untold in _UNTOLD) or origin.startswith("$"):
            value = "(left out)" if value else value
        yield f"{key} = {value}    {origin}"


def _flat(document: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _allocation(allocations: Allocations, record: AllocationRecord) -> Iterator[tuple[str, str]]:
    ended = "" if record.ended is None else f"{record.ended.state}: {record.ended.reason} ({record.ended.source})"
    seen = look(record.directory)
    facts = {
        "name": record.name,
        "id": record.allocation,
        "job_id": record.job_id,
        "directory": str(record.directory),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created_s)),
        "ended": ended,
        "attempt": seen.attempt,
        "hosts": [] if seen.granted is None else list(seen.granted.hosts),
        "reported": sorted(seen.reported),
        "missing": [] if seen.ready is None else list(seen.ready.missing),
        "exit_status": seen.exit_status,
    }
    yield "allocation.json", json.dumps(facts, indent=1)
    if record.job_id is not None:
        yield "scontrol-show-job.txt", allocations.slurm.probe(show_job_argv(record.job_id), _QUERY_S)
        hosts = seen.granted.nodelist if seen.granted is not None else ""
        if hosts:
            argv = ("scontrol", "--oneliner", "show", "node", hosts)
            yield "scontrol-show-node.txt", allocations.slurm.probe(argv, _QUERY_S)
    # Of the script only the flags: the prologue may set anything.
    script = _tail(record.directory / "job.sh")
    yield "sbatch.txt", "\n".join(line for line in script.splitlines() if line.startswith("#SBATCH")) + "\n"
    yield "slurm.out", _tail(record.directory / "slurm.out")


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _PART_BYTES))
            return file.read(_PART_BYTES).decode(errors="replace")
    except OSError as error:
        return f"({error.strerror})\n"


def _packed(folder: str, parts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for label, data in parts.items():
            entry = tarfile.TarInfo(f"{folder}/{label}")
            entry.size = len(data)
            entry.mtime = int(time.time())
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
