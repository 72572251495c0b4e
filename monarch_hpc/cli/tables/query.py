"""`monarch-hpc query`: answers a question in SQL about what the processes of allocations have recorded."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import deadline_option, output_file, since_option
from monarch_hpc.cli.output import Format, TextTable, current_output, output_options
from monarch_hpc.cli.tables.question import NO_ALLOCATION, find_askable
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.telemetry.shipped import question, shipped_questions
from monarch_hpc.telemetry.sql.given import TakenQuestion
from monarch_hpc.telemetry.sql.plan import MAX_ROWS
from monarch_hpc.wire.tables.pieces import sql_tables

__all__ = ["command"]

_INCOMPLETE = 1
"""Exit code of an answer that lacks rows of some process."""

_FORMAT = "Format of the answer; parquet is written to the FILE of -o."


@click.command()
@click.argument("sql", required=False)
@click.option("--ask", metavar="NAME", type=click.Choice([*shipped_questions()]), help="A question by its name.")
@click.option(
    "--allocation", "name", metavar="NAME", help="Only this one, by name, uuid or directory, also after its end."
)
@click.option("--job", metavar="ID", type=int, help="Only the allocation with this Slurm job, also after its end.")
@since_option("records")
@deadline_option("the answers")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv", "parquet"]), default="table", help=_FORMAT)
@click.option(
    "-o",
    "--output-file",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="For parquet.",
)
@click.option("--explain", is_flag=True, help="Show the tables that would be asked for, and the plan; ask for no rows.")
@click.option("--partial", is_flag=True, help="Answer, with exit code 0, even if some rows are missing.")
@click.option("--list", "listed", is_flag=True, help="Show the questions that have names, the tables and columns.")
@output_options
def command(
    sql: str | None,
    ask: str | None,
    name: str | None,
    job: int | None,
    since: int | None,
    timeout_s: int,
    form: str,
    path: Path | None,
    explain: bool,
    partial: bool,
    listed: bool,
) -> int:
    """Answer a question in SQL about what processes recorded.

    The dialect is that of DataFusion; --list shows the tables, and the questions for --ask. The extra
    'monarch-hpc[telemetry]' is needed on hosts; and here, for allocations that have ended.
    """
    output = current_output()
    if form == "json":
        output.format = Format.JSON
    if listed:
        return _show_list()
    if sql is not None and ask is not None:
        raise click.UsageError(f"give a question in SQL or --ask {ask}, not both")
    if sql is None and ask is None:
        raise click.UsageError("give a question in SQL, or the name of one by --ask; --list shows them")
    if (form == "parquet") != (path is not None):
        raise click.UsageError("--format parquet and -o FILE go together")
    sql = question(ask) if ask is not None else sql or ""
    from monarch_hpc.attach.tables.sql import open_question

    live, ended = find_askable(name, job, load_for_command({}).config, output)
    if not live and not ended:
        output.warn(NO_ALLOCATION)
    with open_question(sql, live, timeout_s, ended) as asked:  # an engine checks it before any host is asked
        if explain:
            _show_plan(asked.engine.taken)
            return 0
        wanted = "parquet" if path is not None else "json"
        found = asked.collect(timeout_s, None if since is None else float(since), wanted)
        if not partial:
            found.check_inputs()
        answer = asked.finish(found, wanted, timeout_s)
    if found.missing:
        output.warn(f"the answer lacks rows of {_named(found.missing)}, which did not answer within {timeout_s:g} s")
    if found.left_out:
        output.warn(
            f"the answer lacks rows of {_named(found.left_out)}: they would exceed telemetry.max_answer_bytes; ask for "
            "less by --since, or raise the limit for the next allocation"
        )
    if found.cut:
        joined = ", or join tables on host or incarnation, which hosts do" if len(found.plan.pieces) > 1 else ""
        output.warn(
            f"only the latest records of {_named(found.cut)} fit into telemetry.max_answer_bytes and {MAX_ROWS} rows: "
            f"ask for fewer by WHERE, LIMIT, GROUP BY or --since{joined}"
        )
    if found.dropped:
        output.warn(
            f"{found.dropped} older records are not there: later ones have overwritten them in the memory of "
            "processes; telemetry.keep: always keeps them in files"
        )
    if answer.unreadable:
        output.warn(f"the answer lacks the rows of files that cannot be read: {_named(answer.unreadable)}")
    rows = [[_text(value) for value in row] for row in answer.rows if isinstance(row, list)]
    document = {
        "columns": answer.columns,
        "rows": [[_plain(value) for value in row] for row in answer.rows if isinstance(row, list)],
        "missing": found.missing,
        "left_out": found.left_out,
        "cut": found.cut,
        "dropped": found.dropped,
        "unreadable": answer.unreadable,
    }
    text: str | TextTable
    if path is not None:
        write_private(path.absolute(), base64.b64decode(answer.data))
        text = f"{path}: {answer.num_rows} rows"
    elif form == "csv":
        text = _csv(answer.columns, rows)
    else:
        text = TextTable(answer.columns, rows)
    output.show(document, text, ["\t".join(row) for row in rows])
    complete = not (found.missing or found.left_out or found.cut or answer.unreadable)
    return 0 if (live or ended) and (partial or complete) else _INCOMPLETE


def _show_plan(taken: TakenQuestion) -> None:
    rule, pieces = taken.split.rule, taken.split.pieces
    shown = [f"tables: {', '.join(taken.tables) or 'none'}"]
    shown += [f"each host ({rule}): {piece.host}" for piece in pieces]
    shown += [f"of several hosts: {piece.merge}" for piece in pieces if piece.merge]
    shown += taken.plan.splitlines()
    on_hosts = [{"tables": one.tables, "host": one.host, "merge": one.merge} for one in pieces]
    explained = {"tables": taken.tables, "rule": rule, "pieces": on_hosts, "plan": taken.plan}
    current_output().show(explained, "\n".join(shown), shown)


def _show_list() -> int:
    rows = [[name, "", "question", about] for name, about in shipped_questions().items()]
    rows += [
        [
            table.name if place == 0 else "",
            column.name,
            _kind(column.name, column.kind),
            column.meaning.replace("`", ""),
        ]
        for table in sql_tables().values()
        for place, column in enumerate(table.columns)
    ]
    tables = {
        table.name: {
            "about": table.about,
            "columns": [
                {"name": one.name, "type": _kind(one.name, one.kind), "meaning": one.meaning} for one in table.columns
            ],
        }
        for table in sql_tables().values()
    }
    document = {"questions": shipped_questions(), "tables": tables}
    quiet = [*shipped_questions(), *sql_tables()]
    current_output().show(document, TextTable(["NAME", "COLUMN", "TYPE", "MEANING"], rows), quiet)
    return 0


def _kind(name: str, kind: type) -> str:
    if name == "t":
        return "timestamp"
    return {bool: "boolean", int: "bigint", float: "double", str: "text"}.get(kind, kind.__name__)


def _named(sources: Sequence[str]) -> str:
    more = f" and {len(sources) - 5} more" if len(sources) > 5 else ""
    return ", ".join(sources[:5]) + more


def _plain(value: object) -> object:
    """The value as JSON has it: null for a number that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([columns, *rows])
    return written.getvalue().rstrip("\n")
