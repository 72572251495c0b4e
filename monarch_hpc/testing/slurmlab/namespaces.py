"""Commands that make a host of the lab: its namespaces, mounts and network link, and commands that enter it.

A host is a set of anonymous namespaces, held by one process. When that process dies the kernel removes the host's
processes, mounts and interfaces: a power cut is one SIGKILL, and leaves nothing to undo on the machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.testing.slurmlab.openings import Opening
from monarch_hpc.testing.slurmlab.requirements import tool
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN, Cluster
from monarch_hpc.testing.slurmlab.users import Account

__all__ = [
    "READY",
    "enter_argv",
    "has_permanent",
    "holder_argv",
    "home_script",
    "link_command",
    "login_network",
    "plug_in",
    "port_of",
    "render_init",
    "user_argv",
]

READY = "ready"
# bash reads `exec 10<folder`; sh may not know descriptors of two digits.
_FIRST_DESCRIPTOR = 10
# A flag of the kernel's table of neighbours.
_ATF_PERM = 0x4


def render_init(host: str, base: Path, openings: Sequence[Opening]) -> str:
    """The script that turns fresh namespaces into *host*, prints `READY` and stays as its first process."""
    q = shlex.quote
    descriptors = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + len(openings))
    lines = ["set -e", "umask 022", f"hostname {q(host)}"]
    # Opened before anything is covered: descriptors stay valid when their paths are covered.
    lines += [f"exec {fd}<{q(str(one.path))}" for fd, one in zip(descriptors, openings, strict=True)]
    # -n: otherwise mount records each in /run/mount, which at first is the machine's.
    lines += [
        "mount -n -t tmpfs -o mode=0755 run /run",
        "mount -n -t tmpfs -o mode=1777 tmp /tmp",
        "mount -n -t tmpfs -o mode=1777 tmp /var/tmp",
        "mount -n -t tmpfs -o mode=1777 shm /dev/shm",
        # A sysfs of the host's own network namespace, so that /sys/class/net is right.
        "mount -n -t sysfs sys /sys",
        "mkdir -p -m 1777 /run/lock",
        "mkdir -p /run/munge /run/slurmd",
    ]
    for fd, one in zip(descriptors, openings, strict=True):
        path = q(str(one.path))
        if one.cover:
            lines.append(f"mount -n -t tmpfs -o mode=0755 closed {q(str(one.cover))}")
        lines.append(f"mkdir -p {path}; mount -n -c --bind /proc/self/fd/{fd} {path}")
        if not one.writable:
            lines.append(f"mount -n -o remount,bind,ro {path}")
    lines += [f"exec {fd}<&-" for fd in descriptors]
    binds = {
        "etc": "/etc",
        "munge": "/run/munge",
        f"files/hostname.{host}": "/etc/hostname",
    }
    lines += [f"mount -n --bind {q(str(base / name))} {target}" for name, target in binds.items()]
    lines += [
        "ip link set lo up",
        f"echo {READY}",
        # A host's first process must reap orphans; the kernel does that if it ignores SIGCHLD.
        "cd /; exec env --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1",
    ]
    return "\n".join(lines) + "\n"


def holder_argv(host: str, init: str, tied: bool) -> list[str]:
    """The command that makes a host, once it has read a line on its stdin.

    It waits for that line so that its process id is recorded before it does anything: if the starter dies before, the
    read ends, and with it the process.

    Args:
        host: the host's name, shown in lists of processes.
        init: output of `render_init`.
        tied: die together with the thread that starts it.
    """
    tie = [tool("setpriv"), "--pdeathsig", "KILL"] if tied else []
    wait = [tool("bash"), "-c", 'read -r _ && exec -a "$0" "$@"', f"slurmlab-{host}"]
    make = [tool("unshare"), "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL"]
    return [*tie, *wait, *make, "--mount-proc", tool("bash"), "-c", init]


def enter_argv(init_pid: int) -> list[str]:
    """Prefix of a command to run on the host whose first process is *init_pid*.

    nsenter stays outside as the command's parent, and must outlive it: signals that a terminal or a caller sends to the
    whole process group are for the command.
    """
    patient = [tool("env"), "--ignore-signal=HUP,INT,QUIT,TERM,USR1,USR2"]
    return [*patient, tool("nsenter"), "-t", str(init_pid), "-n", "-u", "-m", "-i", "-p"]


def user_argv(account: Account, folder: Path, argv: Sequence[str], new_session: bool) -> list[str]:
    """*argv* as *account*, in *folder* if it can be entered, else in the home folder; to be run on a host.

    The command keeps the process id of the child that nsenter forks, so that signals reach it.
    """
    become = [tool("setpriv"), f"--reuid={account.uid}", f"--regid={account.uid}", "--init-groups"]
    session = [tool("setsid")] if new_session else []
    # nsenter ignores signals, and the caller may, too; the command gets default handlers.
    settle = [tool("env"), "--default-signal", tool("bash"), "--norc", "--noprofile", "-c"]
    return [*become, *session, *settle, 'cd -- "$1" 2>/dev/null || cd; shift; exec "$@"', "-", str(folder), *argv]


def home_script(homes: Path, access: str) -> str:
    """The script, for a compute host, that shows the homes ``rw``, ``ro``, or ``none`` of them."""
    path = shlex.quote(str(homes))
    lines = ["set -e", f"while mountpoint -q {path}; do umount -n -l {path}; done"]
    if access == "ro":
        lines += [f"mount -n --bind {path} {path}", f"mount -n -o remount,bind,ro {path}"]
    elif access == "none":
        lines += [f"mount -n -t tmpfs -o mode=0555 none {path}"]
    return "\n".join(lines)


def port_of(host: str) -> str:
    """The login host's end of a host's link."""
    return f"to-{host}"


def login_network(cluster: Cluster) -> str:
    """Commands of ip that make the switch, for the login host."""
    # With an address of its own: the kernel's choice changes with the ports.
    return (
        f"link add br0 address {cluster.hardware_address(LOGIN)} type bridge\nlink set br0 up\n"
        f"addr add {cluster.address(LOGIN)}/24 dev br0\n"
    )


def plug_in(host: str, cluster: Cluster, init_pid: int) -> tuple[str, str]:
    """Commands of ip that connect *host* to the switch: for the login host, then for the host itself."""
    port = port_of(host)
    peer = f"peer name eth0 address {cluster.hardware_address(host)} netns {init_pid}"
    outer = f"link add {port} type veth {peer}\nlink set {port} master br0 up\n"
    inner = (
        f"addr add {cluster.address(host)}/24 dev eth0\nlink set eth0 up\n"
        f"route add default via {cluster.address(LOGIN)}\n"
    )
    return outer, inner


def neighbour_command(address: str, state: str) -> str:
    """The command of ip neigh, for a host, that drops packets to *address* when ``cut``."""
    # Packets go to a hardware address that does not exist. With a blackhole route connecting would fail at once.
    if state == "cut":
        return f"replace {address} lladdr 02:00:00:00:00:00 nud permanent dev eth0"
    return f"flush to {address} nud permanent dev eth0"


def has_permanent(table: str) -> bool:
    """Whether a table of neighbours (/proc/net/arp) has a permanent entry."""
    return any(int(line.split()[2], 16) & _ATF_PERM for line in table.splitlines()[1:])


def link_command(host: str, state: str) -> str:
    """The command of ip link, for the login host, that sets a host's link ``up`` or ``down``."""
    return f"set {port_of(host)} {state}"
