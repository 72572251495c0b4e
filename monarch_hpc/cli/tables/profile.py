"""`monarch-hpc profile`: samples the functions that procs stand in, and draws them as a flame graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import output_file
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.cli.tables.stacks import where_of
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.telemetry.views.flame import add_up, flame_page, folded_lines
from monarch_hpc.wire.tables.procs import PROCS, ProcRow
from monarch_hpc.wire.tables.profiles import MAX_SECONDS, PROFILES, ProfileRow

__all__ = ["command", "rounds_of"]

_INCOMPLETE = 1
"""Exit code of a profile that lacks some proc."""

_WAIT_S = 5.0
_PROFILE_WAIT_S = 30.0
"""The longest that a question may take: py-spy starts in a tenth of a second, or in many on a busy host."""

_AT_A_TIME = 2
"""Procs of a host: py-spy takes a thirtieth of a core for each."""


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--run", metavar="RUN", help="Procs of this run only.")
@click.option("--rank", "ranks", metavar="LIST", help="Procs of these ranks only, e.g. 0-3,7.")
@click.option("--host", metavar="HOST", help="Procs on this host only.")
@click.option("--seconds", type=click.IntRange(1, 600), default=10, show_default=True, help="Time for each proc.")
@click.option("--idle", is_flag=True, help="Sample threads that wait, too.")
@click.option("--against", metavar="RANK", type=click.IntRange(0), help="Compare this rank with the others.")
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    default="profile.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="The flame graph; FILE with '.folded' as suffix has the stacks.",
)
@output_options
def command(
    name: str | None,
    run: str | None,
    ranks: str | None,
    host: str | None,
    seconds: int,
    idle: bool,
    against: int | None,
    file: Path,
) -> int:
    """Sample procs and draw a flame graph over ranks.

    The agents run py-spy, from the extra 'monarch-hpc[telemetry]', on two procs of a host at a time, 20 times a second,
    without stopping them. NAME is an allocation; all of them if left out.
    """
    output = current_output()
    where = where_of(run, ranks, host, native=False)
    targets = Question(name, None, load_for_command({}).config, output).find_targets()
    if not targets:
        output.warn(NO_ALLOCATION)
        return _INCOMPLETE
    rows: list[ProfileRow] = []
    missing: list[str] = []
    plans = [_plan(directory, where) for _, directory in targets]
    if not any(rounds for rounds, _ in plans):
        refuse_absent(targets, where)
    for (target, directory), (rounds, lost) in zip(targets, plans, strict=True):
        missing += [f"{one} of {target}" for one in lost]
        output.progress(f"{target}: {len(rounds)} rounds of {seconds} s")
        for procs, part in itertools.product(rounds, parts_of(seconds)):
            some, lost = _sample(directory, procs, {**where, "seconds": part, **({"idle": True} if idle else {})})
            rows += some
            missing += [f"{one} of {target}" for one in lost]
    problems = sorted({f"no profile of rank {row.rank} on {row.host}: {row.problem}" for row in rows if row.problem})
    for problem in problems:
        output.warn(problem)
    if missing:
        output.warn(f"no profile from {', '.join(sorted(set(missing))[:5])}")
    sampled = sorted({row.rank for row in rows if not row.problem})
    if not sampled:
        output.warn("there is nothing to draw")
        return _INCOMPLETE
    if against is not None and (against not in sampled or len(sampled) < 2):
        raise click.UsageError(f"--against {against} needs samples of that rank and of another; there are: {sampled}")
    folded = file.with_suffix(".folded")
    write_private(folded.absolute(), ("\n".join(folded_lines(rows)) + "\n").encode(errors="replace"))
    write_private(file.absolute(), _page(rows, sampled, against).encode(errors="replace"))
    num = sum(row.samples for row in rows)
    document = {"file": str(file), "folded": str(folded), "ranks": sampled, "samples": num}
    document |= {"missing": sorted(set(missing)), "problems": problems}
    text = f"{file}: {num} samples of {len(sampled)} ranks, also in {folded}"
    output.show(document, text, [str(file), str(folded)])
    return _INCOMPLETE if missing or problems else 0


def _page(rows: Sequence[ProfileRow], sampled: Sequence[int], against: int | None) -> str:
    if against is None:
        named = f"rank {sampled[0]}" if len(sampled) == 1 else f"{len(sampled)} ranks"
        return flame_page(f"profile of {named}", add_up(rows))
    others = add_up(row for row in rows if row.rank != against)
    return flame_page(f"rank {against} against the others", add_up(row for row in rows if row.rank == against), others)


def parts_of(seconds: int) -> list[int]:
    """Return the durations of the questions that make up one profile."""
    return [MAX_SECONDS] * (seconds // MAX_SECONDS) + ([seconds % MAX_SECONDS] if seconds % MAX_SECONDS else [])


def rounds_of(procs: Sequence[ProcRow]) -> list[list[ProcRow]]:
    """Return the procs in rounds, each with a few of every host."""
    by_host: dict[str, list[ProcRow]] = {}
    for proc in sorted(procs, key=lambda one: (one.run, one.mesh, one.rank)):
        by_host.setdefault(proc.host, []).append(proc)
    pieces: list[Iterator[list[ProcRow]]] = [_pieces(some) for some in by_host.values()]
    return [[proc for piece in one for proc in piece or ()] for one in itertools.zip_longest(*pieces)]


def _pieces(procs: Sequence[ProcRow]) -> Iterator[list[ProcRow]]:
    for start in range(0, len(procs), _AT_A_TIME):
        yield list(procs[start : start + _AT_A_TIME])


def _plan(directory: Path, where: Mapping[str, object]) -> tuple[list[list[ProcRow]], list[str]]:
    from monarch_hpc.attach.tables.rows import query_rows

    answer = query_rows(directory, PROCS, _WAIT_S, where)
    if answer is None:
        return [], ["the head"]
    live = [row for row in answer.rows if row.mesh >= 0 and row.state not in ("ended", "starting")]
    return rounds_of(live), [*answer.missing, *answer.left_out]


def _sample(
    directory: Path, procs: Sequence[ProcRow], where: Mapping[str, object]
) -> tuple[list[ProfileRow], list[str]]:
    from monarch_hpc.attach.tables.rows import query_rows

    answer = query_rows(directory, PROFILES, _PROFILE_WAIT_S, {**where, "pid": sorted({proc.pid for proc in procs})})
    if answer is None:
        return [], ["the head"]
    return answer.rows, [*answer.missing, *answer.left_out]
