"""`monarch-hpc trace`: writes what processes recorded as a trace for Perfetto."""

from __future__ import annotations

import gzip
import io
import json
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import deadline_option, output_file, since_option
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.telemetry.views.torch_trace import TorchProfile, read_profile, torch_events
from monarch_hpc.telemetry.views.trace import TraceRows, start_of, trace_events
from monarch_hpc.wire.tables.clocks import CLOCKS
from monarch_hpc.wire.tables.history import HANDLED, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.wire.tables.schema import Table

__all__ = ["command"]

_INCOMPLETE = 1
"""Exit code of a trace that lacks rows of some process."""

R = TypeVar("R")


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="The file, which is replaced; compressed if its name ends in .gz.",
)
@click.option("--run", metavar="RUN", help="Only this run.")
@since_option("records")
@deadline_option("the answers")
@click.option(
    "--torch",
    "folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Add the profiles in DIR that torch's profiler has written.",
)
@output_options
def command(
    name: str | None, file: Path, run: str | None, since: int | None, timeout_s: int, folder: Path | None
) -> int:
    """Write a trace of calls, spans and metrics for Perfetto.

    Open the file at https://ui.perfetto.dev, or in any viewer of Chrome's format. Arrows lead from callers to callees;
    times are by the clock of the head's host, also those of torch's profiles. NAME is an allocation; all of them if
    left out.
    """
    output = current_output()
    where: dict[str, object] = {} if run is None else {"run": run}
    if since is not None:
        where["t"] = [">=", time.time() - since]
    targets = Question(name, run, load_for_command({}).config, output).find_targets()
    if not targets:
        output.warn(NO_ALLOCATION)
        return _INCOMPLETE
    hosts = _Hosts(dict(targets), where, timeout_s)
    rows = TraceRows(hosts.ask(HANDLED), hosts.ask(SENDS), hosts.ask(SPANS), hosts.ask(TRANSFERS), hosts.ask(METRICS))
    profiles, unread = _read_profiles(folder)
    if unread:
        output.warn(f"these files in {folder} are not profiles of torch: {', '.join(unread[:5])}")
    empty = next(rows.all, None) is None and not profiles
    if empty:
        refuse_absent(targets, where)
    if hosts.missing:
        output.warn(f"the trace lacks rows of {', '.join(sorted(hosts.missing)[:5])}")
    if empty:
        output.warn(f"there is nothing to write: no process has such records; {file.absolute()} is left as it is")
        return _INCOMPLETE
    placed = _placed(profiles, rows, hosts)
    start_s = min([start_of(rows), *(profile.begin_s - ahead_s for profile, ahead_s, _ in placed)])
    events = [*trace_events(rows, start_s)]
    events += torch_events(placed, start_s, 1 + len({event["pid"] for event in events}))
    written = io.BytesIO()
    _write(written, events, compressed=file.suffix == ".gz")
    write_private(file.absolute(), written.getvalue())
    if hosts.cut:
        output.warn(f"only the latest records of {', '.join(sorted(hosts.cut)[:5])} fit: ask for less by --since")
    unsure = sorted({row.host for row in rows.all if row.error_us < 0})
    if len({row.host for row in rows.all}) > 1 and unsure:
        output.warn(f"the clocks of {', '.join(unsure[:5])} were not compared with the head's: times there may be off")
    counts = {"calls": len(rows.handled), "sent": len(rows.sends), "spans": len(rows.spans)}
    counts |= {"transfers": len(rows.transfers), "metrics": len(rows.metrics)}
    counts["profiles"] = len(profiles)
    counts["arrows"] = sum(event["ph"] == "s" for event in events)
    document = {"file": str(file), "bytes": len(written.getvalue()), **counts, "missing": sorted(hosts.missing)}
    text = f"{file}: {', '.join(f'{num} {what}' for what, num in counts.items())}; open it at https://ui.perfetto.dev"
    output.show({**document, "cut": sorted(hosts.cut)}, text, [str(file)])
    return _INCOMPLETE if hosts.missing else 0


class _Hosts:
    """The hosts of some allocations.

    Attributes:
        missing: processes that have not answered, in words; *cut* those of whose records only the latest are there.
    """

    def __init__(self, targets: Mapping[str, Path], where: Mapping[str, object], timeout_s: float) -> None:
        self._targets = targets
        self._where = where
        self._timeout_s = timeout_s
        self.missing: set[str] = set()
        self.cut: set[str] = set()

    def ask(self, table: Table[R]) -> list[R]:
        """Return the rows of a table."""
        from monarch_hpc.attach.tables.rows import query_rows

        rows: list[R] = []
        for name, directory in self._targets.items():
            answer = query_rows(directory, table, self._timeout_s, self._where)
            if answer is None:
                self.missing.add(f"the head of {name}")
                continue
            rows += answer.rows
            self.missing.update(answer.missing, answer.left_out)
            self.cut.update(answer.cut)
        return rows


def _read_profiles(folder: Path | None) -> tuple[list[TorchProfile], list[str]]:
    """Return the profiles in a folder, and the names of the files that are something else."""
    profiles, unread = [], []
    paths = [] if folder is None else sorted(path for path in folder.rglob("*.json*") if path.is_file())
    for path in paths:
        try:
            data = path.read_bytes()
            profile = read_profile(path.name, json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
        except (OSError, EOFError, ValueError, zlib.error, RecursionError):
            profile = None
        if profile is None:
            unread.append(path.name)
        else:
            profiles.append(profile)
    return profiles, unread


def _placed(profiles: list[TorchProfile], rows: TraceRows, hosts: _Hosts) -> list[tuple[TorchProfile, float, str]]:
    """Each profile with the seconds by which the clock of its host is ahead of the head's, and its process.

    A profile is of the process with its id whose records are nearest to it in time; ids of processes return.
    """
    ahead_s = {clock.host: clock.ahead_us * 1e-6 for clock in hosts.ask(CLOCKS)} if profiles else {}
    placed = []
    for profile in profiles:
        own = [row for row in rows.all if row.pid == profile.pid]
        row = min(own, key=lambda one: abs(one.t - profile.begin_s), default=None)
        if row is None:
            placed.append((profile, 0.0, profile.name))
        else:
            placed.append((profile, ahead_s.get(row.host, 0.0), f"r{row.rank:02d} {row.host}"))
    return placed


def _write(written: io.BytesIO, events: list[dict[str, object]], *, compressed: bool) -> None:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    text = ",\n".join(map(encode, events))
    body = f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'.encode()
    written.write(gzip.compress(body, compresslevel=6, mtime=0) if compressed else body)
