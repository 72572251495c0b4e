"""Entry point of `monarch-hpc`: finds the verb, and turns its exceptions into a message and an exit code.

Verbs are imported when they are called, so that `--help` answers at once even on a cold file system.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monarch_hpc.cli.output import Console, Format, plain
from monarch_hpc.core.errors import InternalError, MonarchError
from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.core.process.imports import uncollected
from monarch_hpc.core.process.streams import open_standard_streams
from monarch_hpc.core.storage.shortage import shortage_note
from monarch_hpc.core.version import __version__

if TYPE_CHECKING:
    from monarch_hpc.config.load import Loaded

__all__ = ["VERBS", "cli", "load_for_command", "load_to_start", "main"]

# Shown by `--help`, which so need not import every verb. A test compares them with the verbs' own help texts.
VERBS: Mapping[str, str] = {
    "alloc": "Take hosts from Slurm and hold them.",
    "run": "Run a script on an allocation.",
    "sbatch": "Submit a script as a batch job of its own.",
    "status": "Show allocations, their state and their runs.",
    "attach": "Show a run that goes on without a terminal, or take it over.",
    "cancel": "End a run.",
    "logs": "Show the output of agents and runs.",
    "query": "Answer a question in SQL about what processes recorded.",
    "top": "Show hosts, procs and actors as they work.",
    "dash": "Show ranks, calls, metrics, failures and output in a browser.",
    "trace": "Write a trace of calls, spans and metrics for Perfetto.",
    "stacks": "Show the stacks of procs, the odd one first.",
    "profile": "Sample procs and draw a flame graph over ranks.",
    "cost": "Show node-hours and time left of allocations.",
    "report": "Pack an archive for the help desk, without secrets.",
    "release": "Give allocations back to Slurm.",
    "ctx": "Choose the current allocation.",
    "mesh": "Show and stop meshes that are kept for later runs.",
    "queue": "Show what waits in the queue, why, and since when.",
    "extend": "Change the time limit of an allocation.",
    "shrink": "Give some hosts of an allocation back to Slurm.",
    "node": "Show, drain and check hosts.",
    "gc": "Remove what earlier allocations left on this machine.",
    "exec": "Run a command on the hosts of an allocation.",
    "shell": "Open a shell on a host of an allocation.",
    "config": "Show the configuration.",
    "completion": "Print the lines by which a shell completes words.",
    "doctor": "Check what works on this machine, and how to fix the rest.",
}

# The folders below `monarch_hpc.cli` of those verbs that do not stand there themselves.
_FOLDERS: Mapping[str, str] = {
    "attach": "runs",
    "cancel": "runs",
    "cost": "checks",
    "ctx": "allocations",
    "dash": "dash",
    "doctor": "checks",
    "mesh": "allocations",
    "queue": "allocations",
    "extend": "allocations",
    "shrink": "allocations",
    "gc": "hosts",
    "node": "hosts",
    "exec": "hosts",
    "shell": "hosts",
    "completion": "allocations",
    "profile": "tables",
    "query": "tables",
    "stacks": "tables",
    "top": "tables",
    "trace": "tables",
    "report": "checks",
}

_EXIT_USAGE = 64
_EXIT_IO = 73
_EXIT_INTERRUPTED = 130


class _Verbs(click.Group):
    """A group that imports a verb's module when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        folder = f"{_FOLDERS[cmd_name]}." if cmd_name in _FOLDERS else ""
        with uncollected():
            command = importlib.import_module(f"monarch_hpc.cli.{folder}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib  # here and not above: most commands are spelled right

            similar = difflib.get_close_matches(args[0], VERBS, 1)
            guess = f" Did you mean '{similar[0]}'?" if similar else ""
            raise click.UsageError(f"No such command '{args[0]}'.{guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="monarch-hpc")
def cli() -> None:
    """Program a Slurm allocation from one Python script.

    A session: 'monarch-hpc alloc NAME -N 4 -t 30', then 'monarch-hpc run SCRIPT' as often as you like, then
    'monarch-hpc release NAME'. Without Slurm: 'monarch-hpc run --local 2 SCRIPT'.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A verb returns its exit code, None for 0. Its exception becomes one message on stderr (with ``--json``, one JSON
    object on stdout) and the exit code of the error's class.
    """
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name that the locale cannot encode must not abort a command in the middle of its output.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    forbid_core_dumps()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    output = Console(sys.stdout, sys.stderr, colour=colour)
    try:
        result = cli.main(arguments, prog_name="monarch-hpc", standalone_mode=False, obj=output)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _EXIT_USAGE
    except click.ClickException as error:
        # The parser may have failed before it reached --json.
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            output.format = Format.JSON
        # click lists choices below each other.
        message = error.format_message().replace("\n\t", " ").rstrip(".")
        if context := getattr(error, "ctx", None):
            message += f"{' See' if message.endswith('?') else '; see'} '{context.command_path} --help'"
        output.error("UsageError", message, _EXIT_USAGE)
        return _EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        output.error("Interrupted", "interrupted", _EXIT_INTERRUPTED)
        return _EXIT_INTERRUPTED
    except MonarchError as error:
        code = output.exit_code(error.exit_code)
        output.error(type(error).__name__, _sentence(error), code)
        return code
    except OSError as error:
        code = output.exit_code(_EXIT_IO)
        note = shortage_note(error)
        if note and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        output.error(type(error).__name__, f"{_sentence(error)} (details in {_save_traceback(error)})", code)
        return code
    except Exception as error:  # noqa: BLE001 - the edge: even a bug ends in a message
        problem = f"unexpected {type(error).__name__}: {error} (details in {_save_traceback(error)})"
        code = output.exit_code(InternalError.exit_code)
        output.error("InternalError", str(InternalError(problem)), code)
        return code
    return result if isinstance(result, int) else 0


def load_for_command(flags: Mapping[str, object]) -> Loaded:
    """Load the configuration for a verb with *flags*: dotted key -> value, None if not given.

    The site is recognised from the environment and slurm.conf; slurmctld is not asked.
    """
    from monarch_hpc.config.load import load

    return load(flags)


def load_to_start(flags: Mapping[str, object]) -> Loaded:
    """Load as `load_for_command` does, for verbs that start processes: refuse at once what those would refuse later.

    Raises:
        ConfigError: UCX over tcp is configured, but the network is not trusted.
    """
    from monarch_hpc.transport.ucx.settings import check_transports

    loaded = load_for_command(flags)
    check_transports(loaded.config.fabric, loaded.config.ucx, os.environ)
    return loaded


def _sentence(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _save_traceback(error: BaseException) -> str:
    """Save the traceback for a bug report, and return its path."""
    import traceback

    from monarch_hpc.core.storage.files import private_dir, write_private

    lines = "".join(traceback.format_exception(error))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path: Path = private_dir(load_for_command({}).config.paths.state / "tracebacks") / name
        write_private(path, f"monarch_hpc {__version__}, Python {sys.version}\n{lines}".encode(errors="replace"))
    except (MonarchError, OSError):
        # A full disk or broken file may be the very cause of the error; then print the traceback.
        sys.stderr.write(plain(lines, lines=True))
        return "the lines above"
    return str(path)
