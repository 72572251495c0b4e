"""`monarch-hpc completion`: prints the lines by which a shell completes verbs, options, allocations and hosts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from monarch_hpc.cli.main import cli
from monarch_hpc.cli.output import current_output, output_options

__all__ = ["command"]

_PROGRAM = "monarch-hpc"
_VARIABLE = "_MONARCH_HPC_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_options
def command(shell: str) -> int:
    """Print the lines by which a shell completes words.

    bash: 'eval "$(monarch-hpc completion bash)"' in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
    'monarch-hpc completion fish > ~/.config/fish/completions/monarch-hpc.fish'. Names come from files, so completing
    them asks no daemon.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, _PROGRAM, _VARIABLE).source()
    current_output().show({"shell": shell, "script": script}, script.rstrip("\n"), script.splitlines())
    return 0
