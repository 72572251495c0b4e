"""`monarch-hpc top`: shows hosts, procs and actors while they work."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import seconds
from monarch_hpc.cli.output import Format, TextTable, current_output, output_options
from monarch_hpc.cli.runs.sources import Choice, find_sources
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.cli.tables.stacks import render_group
from monarch_hpc.cli.tables.top_view import COLUMNS, TopScreen, lines_of
from monarch_hpc.core.clock import monotonic
from monarch_hpc.telemetry.views.sighting import LOOKED_AT, ProcSeen, Sighting, see
from monarch_hpc.telemetry.views.stacks import fold_stacks
from monarch_hpc.wire.tables.calls import CALLS, CallsSeen
from monarch_hpc.wire.tables.stacks import STACKS

__all__ = ["WatchedHosts", "command"]

_WAIT_S = 2.0
_STACK_WAIT_S = 10.0
_ONCE_S = 0.5
"""Time between the two pictures of ``--once``, from which the use of CPUs comes."""

_MAX_LINES = 2000
"""Limit on the lines of output that are shown, the last ones."""


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--once", is_flag=True, help="Print one picture, for pipes and scripts.")
@click.option("--run", metavar="RUN", help="Only this run.")
@click.option("--filter", "wanted", metavar="TEXT", default="", help="Only procs that have this text somewhere.")
@click.option(
    "--every",
    "every_s",
    metavar="TIME",
    default="2s",
    show_default=True,
    callback=seconds,
    help="Time between two pictures.",
)
@output_options
def command(name: str | None, once: bool, run: str | None, wanted: str, every_s: int) -> int:
    """Show hosts, procs and actors as they work.

    Keys: up and down; enter opens and closes hosts and procs; s shows the stack of a proc, l its output; / filters; q
    ends. NAME is an allocation; all of them if left out.
    """
    output = current_output()
    targets = Question(name, run, load_for_command({}).config, output).find_targets()
    if not targets:
        output.warn(NO_ALLOCATION)
        return 1
    if run is not None:
        refuse_absent(targets, {"run": run})
    hosts = WatchedHosts(dict(targets), run)
    if once or output.format is not Format.TABLE:
        with contextlib.closing(hosts):
            first = hosts.look(Sighting())
            time.sleep(_ONCE_S)
            snapshot = hosts.look(first)
        for warning in snapshot.warnings:
            output.warn(warning)
        lines = lines_of(snapshot, set(), wanted, everything=True)
        documents = [_document(proc) for proc in snapshot.procs]
        rows = [line.cells for line in lines]
        output.show(
            {"procs": documents, "warnings": [*snapshot.warnings]}, TextTable(COLUMNS, rows), [row[0] for row in rows]
        )
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this is no terminal; --once prints one picture")
    try:
        import curses

        from monarch_hpc.cli.tables.top_window import show_window
    except ImportError as error:
        raise click.UsageError(f"this Python has no curses ({error}); --once prints one picture") from error
    gc.freeze()  # what is loaded stays: a collection after each few pictures would go through all of it
    try:
        show_window(TopScreen(wanted), hosts, {"stack": hosts.stack, "logs": hosts.logs}, every_s)
    except curses.error as error:
        raise click.UsageError(f"this terminal cannot be used: {error}; --once prints one picture") from error
    return 0


class WatchedHosts:
    """The hosts of some allocations, by name and directory.

    Attributes:
        heads: a channel to the head of each, for one thread, until `close`.
    """

    def __init__(self, targets: Mapping[str, Path], run: str | None) -> None:
        from monarch_hpc.attach.head.client import HeadClient

        self._targets = targets
        self.heads = {name: HeadClient(directory) for name, directory in targets.items()}
        self._seen: dict[str, CallsSeen] = {}
        self._where = {} if run is None else {"run": run}

    def look(self, before: Sighting) -> Sighting:
        from monarch_hpc.attach.tables.rows import query_portions

        now_s = monotonic()
        seen: dict[str, CallsSeen] = {}
        warnings: list[str] = []
        for name, head in self.heads.items():
            answer = query_portions(head, CALLS.name, _WAIT_S, self._where, parts=LOOKED_AT)
            if answer is None:
                warnings.append(f"{name}: its head does not answer")
                continue
            absent = sorted({*answer.missing, *answer.left_out})
            if absent:
                warnings.append(f"{name}: no answer from {', '.join(absent[:5])}")
            texts = (portion.rows for portion in answer.portions)
            seen[name] = self._seen[name] = CallsSeen.parse(texts, self._seen.get(name))
        return see(seen, warnings, before, now_s)

    def close(self) -> None:
        """Close the channels; no picture is being taken."""
        for head in self.heads.values():
            head.close()

    def stack(self, proc: ProcSeen) -> Iterator[str]:
        from monarch_hpc.attach.tables.rows import query_rows

        one = proc.process
        where = {"run": one.run, "mesh": one.mesh, "rank": one.rank, "host": one.host}
        answer = query_rows(self._targets[proc.allocation], STACKS, _STACK_WAIT_S, where)
        rows = [] if answer is None else answer.rows
        for row in rows:
            if row.problem:
                yield row.problem
        for group in fold_stacks((row for row in rows if not row.problem), everything=True):
            yield from (*render_group(group, 1).split("\n"), "")
        if not rows:
            yield "there is no stack: programs, and procs that have ended, are not read"

    def logs(self, proc: ProcSeen) -> Iterator[str]:
        one = proc.process
        ranks = () if proc.name == "program" else (range(one.rank, one.rank + 1),)
        sources = find_sources(self._targets[proc.allocation], one.run, Choice(ranks, one.host))
        chosen = [source for source in sources if source.rank == (one.rank if ranks else -1)]
        for source in chosen:
            yield source.label
            yield from source.last(0.0).splitlines()[-_MAX_LINES:]
        if not chosen:
            yield "it has written nothing that is kept"


def _document(proc: ProcSeen) -> dict[str, object]:
    return {"allocation": proc.allocation, **asdict(proc.process), "cpu": proc.cpu, "rows": [*map(asdict, proc.rows)]}
