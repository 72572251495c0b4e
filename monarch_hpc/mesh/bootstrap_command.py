"""How a proc is started, as Monarch programs say it; here only the environment can be chosen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from monarch_hpc.core.arguments import check_variables, shown

__all__ = ["BootstrapCommand", "default_bootstrap_cmd", "variables_of"]


@dataclass
class BootstrapCommand:
    """Program, arguments and environment of a proc.

    Procs are forked from a warm interpreter, so that program and arguments are always those of
    `default_bootstrap_cmd`; see `HostMesh.spawn_procs` for what may be given.

    Attributes:
        env: variables to set, on top of those of the host's agent; None removes one.
        inherit_env: whether the agent's variables are there too.
    """

    program: str
    arg0: str | None = None
    args: list[str] = field(default_factory=list)
    env: Mapping[str, str | None] = field(default_factory=dict)
    inherit_env: bool = True

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with more variables; these come before those that it has."""
        return replace(self, args=list(self.args), env={**self.env, **check_variables("env", env)})


def default_bootstrap_cmd() -> BootstrapCommand:
    """How procs start: this interpreter, with the environment of their host's agent."""
    return BootstrapCommand(sys.executable, None, ["-m", "monarch_hpc.agent.procs.zygote"])


def variables_of(command: BootstrapCommand | None) -> dict[str, str | None]:
    """The variables of *command*.

    Raises:
        ValueError: it names another program or other arguments, or does not inherit variables; TypeError for a function
            of the coordinates: all procs of a mesh start alike.
    """
    if command is None:
        return {}
    if not isinstance(command, BootstrapCommand):
        raise TypeError(f"bootstrap_command is {shown(command)}; give a BootstrapCommand, the same for all procs")
    usual = default_bootstrap_cmd()
    if (command.program, command.args) != (usual.program, usual.args) or not command.inherit_env:
        raise ValueError(
            f"bootstrap_command runs {command.program!r} {command.args}: procs are forked from a warm interpreter, and "
            "only variables can be given; take default_bootstrap_cmd().with_env(...), or with_python_executable()"
        )
    return check_variables("bootstrap_command.env", command.env)
