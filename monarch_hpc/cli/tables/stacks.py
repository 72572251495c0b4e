"""`monarch-hpc stacks`: shows the functions that procs stand in, equal stacks once and the odd one first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import deadline_option
from monarch_hpc.cli.output import current_output, output_options, plain
from monarch_hpc.cli.runs.sources import parse_ranks
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.mesh.output.fold import render_ranks
from monarch_hpc.telemetry.views.stacks import StackGroup, fold_stacks
from monarch_hpc.wire.tables.stacks import STACKS, ThreadStack

__all__ = ["command", "render_group", "where_of"]

_INCOMPLETE = 1
"""Exit code of an answer without the stacks of some proc."""

_MAX_RANKS = 10_000
"""Limit on the ranks that are named in a question; without `--rank`, there is none."""


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--run", metavar="RUN", help="Procs of this run only.")
@click.option("--rank", "ranks", metavar="LIST", help="Procs of these ranks only, e.g. 0-3,7.")
@click.option("--host", metavar="HOST", help="Procs on this host only.")
@click.option("--all", "everything", is_flag=True, help="Show threads that run no code of the program, too.")
@click.option("--native", is_flag=True, help="Show native functions, too: stops each proc for some 10 ms.")
@deadline_option("the stacks")
@output_options
def command(
    name: str | None,
    run: str | None,
    ranks: str | None,
    host: str | None,
    everything: bool,
    native: bool,
    timeout_s: int,
) -> int:
    """Show the stacks of procs, the odd one first.

    Equal ones are shown once. Works for procs that hang, hold the interpreter's lock, or are stopped: the agents read
    them with py-spy, from the extra 'monarch-hpc[telemetry]', without their help. NAME is an allocation; all of them
    if left out.
    """
    from monarch_hpc.attach.tables.rows import query_rows

    output = current_output()
    where = where_of(run, ranks, host, native=native)
    targets = Question(name, None, load_for_command({}).config, output).find_targets()
    if not targets:
        output.warn(NO_ALLOCATION)
    rows: list[ThreadStack] = []
    missing: list[str] = []
    for target, directory in targets:
        answer = query_rows(directory, STACKS, timeout_s, where)
        if answer is None:
            missing.append(f"the head of {target}")
        else:
            rows += answer.rows
            missing += [f"{one} of {target}" for one in (*answer.missing, *answer.left_out)]
    if not rows:
        refuse_absent(targets, where)
    if missing:
        output.warn(f"no stacks from {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}")
    problems: dict[str, list[ThreadStack]] = {}
    for row in rows:
        if row.problem:
            problems.setdefault(row.problem, []).append(row)
    for problem, some in problems.items():
        output.warn(f"no stack of {_who(some)}: {problem}")
    groups = fold_stacks((row for row in rows if not row.problem), everything=everything)
    num_procs = len({(row.run, row.mesh, row.rank, row.pid) for row in rows if not row.problem})
    document = {
        "groups": [
            {"frames": one.frames, "num_procs": one.num_procs, "threads": [_thread(row) for row in one.threads]}
            for one in groups
        ],
        "num_procs": num_procs,
        "missing": missing,
        "problems": {problem: [_thread(row) for row in some] for problem, some in problems.items()},
    }
    text = "\n\n".join(render_group(one, num_procs) for one in groups)
    quiet = [one.frames[0] if one.frames else "-" for one in groups]
    output.show(document, text or "no proc has a stack to show", quiet)
    return 0 if targets and not missing and not problems else _INCOMPLETE


def where_of(run: str | None, ranks: str | None, host: str | None, *, native: bool) -> Mapping[str, object]:
    """Return the choice of rows for a question about stacks.

    Raises:
        BadParameter: *ranks* is no list of ranks, or one of too many.
    """
    where: dict[str, object] = {"run": run, "host": host}
    if ranks is not None:
        try:
            parts = parse_ranks(ranks)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--rank'") from error
        if sum(map(len, parts)) > _MAX_RANKS:
            raise click.BadParameter(f"more than {_MAX_RANKS} ranks: leave it out", param_hint="'--rank'")
        where["rank"] = sorted({rank for part in parts for rank in part})
    chosen = {key: value for key, value in where.items() if value is not None}
    return {**chosen, "native": True} if native else chosen


def render_group(group: StackGroup, num_procs: int) -> str:
    """Return a stack with the procs that it is of, as lines without control codes."""
    marks = []
    for mark, chosen in (
        ("stopped by a signal", [row for row in group.threads if row.state == "stopped"]),
        ("holds the interpreter's lock", [row for row in group.threads if row.owns_gil]),
    ):
        if chosen:
            marks.append(mark if len(group.threads) == 1 else f"{_who(chosen)} {mark}")
    names = sorted({row.thread_name or "without a name" for row in group.threads})
    thread = f"thread {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}" if group.frames else ""
    head = f"{group.num_procs} of {num_procs}: " + "; ".join(filter(None, [_who(group.threads), thread, *marks]))
    frames = group.frames or ["runs no code of the program"]
    return "\n".join(map(plain, [head, *(f"    {frame}" for frame in frames)]))


def _who(rows: Sequence[ThreadStack]) -> str:
    """The procs by rank; with their mesh if there are several, and with host and pid if it is only one."""
    procs = {(row.run, row.mesh, row.rank, row.host, row.pid) for row in rows}
    meshes = sorted({(run, mesh) for run, mesh, *_ in procs})
    parts = []
    for run, mesh in meshes:
        ranks = render_ranks({one[2] for one in procs if one[:2] == (run, mesh)})
        parts.append(f"{ranks} of mesh {mesh}" if len(meshes) > 1 else ranks)
    only = next(iter(procs)) if len(procs) == 1 else None
    return ", ".join(parts) + (f" on {only[3]}, pid {only[4]}" if only is not None else "")


def _thread(row: ThreadStack) -> dict[str, object]:
    left = ("stack", "function", "line", "problem", "cause")
    return {name: value for name, value in asdict(row).items() if name not in left}
