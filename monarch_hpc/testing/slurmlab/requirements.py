"""Checks whether a lab can run on this machine, and explains what is missing.

Imports nothing outside the standard library, so that it works before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["SYSTEM_PATH", "find_missing_packages", "find_problems", "tool"]

# Daemons and `ip` live in sbin, which is on the PATH of few users.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Debian's package of each command. slurm-wlm brings slurmctld, slurmd and slurm-client.
_PACKAGES = {
    "bash": "bash",
    "cp": "coreutils",
    "env": "coreutils",
    "ip": "iproute2",
    "mount": "mount",
    "munged": "munge",
    "nsenter": "util-linux",
    "sbatch": "slurm-wlm",
    "scancel": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "sinfo": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "squeue": "slurm-wlm",
    "srun": "slurm-wlm",
    "unshare": "util-linux",
}


def _which(command: str) -> str | None:
    return shutil.which(command, path=SYSTEM_PATH)


def tool(command: str) -> str:
    """The full path of a system command; its bare name if it is missing."""
    return _which(command) or command


def find_missing_packages(which: Callable[[str], str | None] = _which) -> tuple[str, ...]:
    """The Debian packages of the missing commands, sorted."""
    return tuple(sorted({package for command, package in _PACKAGES.items() if which(command) is None}))


def find_problems(
    which: Callable[[str], str | None] = _which,
    user_id: int | None = None,
    may_unshare: Callable[[], str] | None = None,
    config_folder: Path = Path("/etc/slurm"),
) -> tuple[str, ...]:
    """Why no lab can run here, one sentence each; empty if it can.

    Args:
        which: finds a command; returns None if it is missing.
        user_id: effective user id; by default this process's.
        may_unshare: returns the kernel's message if namespaces are refused, else an empty string.
        config_folder: the folder of this machine's slurm.conf.
    """
    problems = []
    missing = sorted(command for command in _PACKAGES if which(command) is None)
    if missing:
        packages = " ".join(find_missing_packages(which))
        problems.append(
            f"missing commands: {', '.join(missing)}; ask the administrator to run 'apt-get install {packages}'"
        )
    elif not config_folder.is_dir():
        problems.append(
            f"Slurm's folder {config_folder} is missing; ask the administrator to run 'apt-get install slurm-wlm'"
        )
    if (os.geteuid() if user_id is None else user_id) != 0:
        problems.append("this user is not root; ask the administrator to run it, or for sudo, on a throw-away machine")
    elif not missing and (refusal := (may_unshare or _try_namespaces)()):
        problems.append(
            f"the kernel refuses new namespaces ({refusal}); in a container, ask for --privileged "
            "or the capabilities SYS_ADMIN and NET_ADMIN"
        )
    return tuple(problems)


def _try_namespaces() -> str:
    argv = [tool("unshare"), "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"]
    # A host's network needs more than a namespace: the kernel's bridge and veth modules.
    probe = "ip link add br0 type bridge && ip link add v0 type veth peer name v1 && mount -n -t sysfs sys /sys"
    done = subprocess.run(
        [*argv, tool("bash"), "-c", probe],
        env={"PATH": SYSTEM_PATH},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"
