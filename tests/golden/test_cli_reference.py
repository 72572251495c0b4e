"""The reference of commands in the documentation is their own help, word for word.

`BLESS=1 pytest tests/golden` writes it anew; read the difference before committing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click

from monarch_hpc.cli.main import cli
from tests.guards.tree import ROOT

PAGE = ROOT / "docs" / "cli.md"
WIDTH = 110

HEAD = """# Commands

The help of every command, as `monarch-hpc COMMAND --help` prints it. [Using](using.md), [batch jobs](batch.md),
[sites](sites.md) and [seeing](seeing.md) say what they are for, and [using](using.md#exit-codes) has the exit codes.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The command and all below it."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def render() -> str:
    parts = [HEAD]
    root = click.Context(
        cli, info_name="monarch-hpc", terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"]
    )
    for command, context in commands(cli, root):
        parts.append(f"## {context.command_path}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def test_the_reference_is_the_help_of_the_commands() -> None:
    # In a process of its own: click remembers the names of the help option by which a command was first called.
    program = "import sys; from tests.golden.test_cli_reference import render; sys.stdout.write(render())"
    rendered = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    if os.environ.get("BLESS"):
        PAGE.write_text(rendered)
    assert PAGE.read_text() == rendered
