"""The order to start a program on an allocation's first host, as if it had been started here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from monarch_hpc.core.machine.procfs import own_umask
from monarch_hpc.slurm.commands.argv import scrubbed
from monarch_hpc.wire.control.programs import StartProgram

__all__ = ["plan_order", "travelling"]

# Variables that describe this machine, this login, or the job that this command runs in. The host has its own.
_LOCAL = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "HOSTNAME",
        "MAIL",
        "OLDPWD",
        "ROCR_VISIBLE_DEVICES",
        "SHLVL",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TMUX",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "ZE_AFFINITY_MASK",
        "_",
    }
)
_LOCAL_PREFIXES = ("SSH_", "XDG_RUNTIME_", "XDG_SESSION_", "MONARCH_HPC_COOKIE", "MONARCH_HPC_PARENT")


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that go with a program to another machine."""
    return {
        name: value
        for name, value in scrubbed(environ).items()
        if name not in _LOCAL and not name.startswith(_LOCAL_PREFIXES)
    }


def plan_order(
    run: str, argv: Sequence[str], environ: Mapping[str, str], terminal: tuple[int, int] | None, *, reads: bool
) -> StartProgram:
    """Make the order for *argv* in this command's working folder.

    Args:
        terminal: rows and columns of the program's terminal; None for pipes.
    """
    return StartProgram(
        run=run,
        title=" ".join(argv),
        argv=list(argv),
        cwd=os.getcwd(),
        umask=own_umask(),
        environment=travelling(environ),
        terminal=list(terminal or ()),
        reads=reads,
    )
