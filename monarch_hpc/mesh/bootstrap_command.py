"""Monarch's description of how a proc is started; here only the environment can be chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import field, replace

from monarch_hpc.core.arguments import check_variables, shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Point

__all__ = ["BootstrapCommand", "PointCommand", "default_bootstrap_cmd", "variables_of"]


@dataclass
class BootstrapCommand:
    """Program, arguments and environment of a proc.

    Procs are forked from a warm interpreter, so program and arguments must be the ones that `default_bootstrap_cmd`
    returns; `HostMesh.spawn_procs` accepts other variables only.

    Attributes:
        program: path of the interpreter.
        arg0: not used.
        args: arguments of the program.
        env: variables to set in addition to those of the host's agent; None removes a variable.
        inherit_env: whether the proc inherits the agent's variables; must be True.
    """

    program: str
    arg0: str | None = None
    args: list[str] = field(default_factory=list)
    env: Mapping[str, str | None] = field(default_factory=dict)
    inherit_env: bool = True

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy of this command with more variables.

        Args:
            env: variables to set, by name; None removes a variable. They override variables of the same name in
                `self.env`.

        Raises:
            TypeError: *env* is not a mapping of names to strings, paths or None.
            ValueError: a name or value that the environment of a process cannot hold.
        """
        return replace(self, args=list(self.args), env={**self.env, **check_variables("env", env)})


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts procs: this interpreter, with the environment of the host's agent."""
    return BootstrapCommand(sys.executable, None, ["-m", "monarch_hpc.agent.procs.zygote"])


PointCommand = Callable[[Point], BootstrapCommand]
"""Returns the command of the proc at the given coordinates."""


def variables_of(command: BootstrapCommand | None) -> dict[str, str | None]:
    """The variables of *command*; empty for None.

    Raises:
        TypeError: *command* is not a `BootstrapCommand`.
        ValueError: *command* names another program or other arguments, or does not inherit variables.
    """
    if command is None:
        return {}
    if not isinstance(command, BootstrapCommand):
        raise TypeError(
            f"bootstrap_command is {shown(command)}; give a BootstrapCommand, "
            "or a function of a proc's coordinates that returns one"
        )
    usual = default_bootstrap_cmd()
    if (command.program, command.args) != (usual.program, usual.args) or not command.inherit_env:
        raise ValueError(
            f"bootstrap_command runs {command.program!r} {command.args}: procs are forked from a warm interpreter, and "
            "only variables can be given; take default_bootstrap_cmd().with_env(...), or with_python_executable()"
        )
    return check_variables("bootstrap_command.env", command.env)
