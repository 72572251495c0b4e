"""The lab as a command: ``python -m monarch_hpc.testing.slurmlab``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.testing.slurmlab.folder import find_labs, find_root
from monarch_hpc.testing.slurmlab.lab import SlurmLab
from monarch_hpc.testing.slurmlab.requirements import find_missing_packages, find_problems
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN

_DESCRIPTION = """\
A Slurm cluster on this machine: a login host and compute hosts, each with its own network, name, processes and /tmp,
and a real slurmctld and slurmd. Needs root, on a machine with slurm-wlm, munge and iproute2 (see 'check')."""

_EPILOG = """\
examples:
  python -m monarch_hpc.testing.slurmlab up
  python -m monarch_hpc.testing.slurmlab exec -- srun -N4 hostname
  python -m monarch_hpc.testing.slurmlab shell
  python -m monarch_hpc.testing.slurmlab kill-host n3
  python -m monarch_hpc.testing.slurmlab down"""

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_FAULTS: dict[str, tuple[Callable[[SlurmLab, str], None], str]] = {
    "kill-host": (SlurmLab.kill_host, "cut a host's power"),
    "boot-host": (SlurmLab.boot_host, "boot a host without power"),
    "link-down": (SlurmLab.link_down, "unplug a host's network cable"),
    "link-up": (SlurmLab.link_up, "plug a host's network cable in again"),
    "kill-slurmd": (SlurmLab.kill_slurmd, "kill slurmd on a host; jobs' processes stay"),
    "start-slurmd": (SlurmLab.start_slurmd, "start slurmd on a host"),
}

_FAULTS_BETWEEN: dict[str, tuple[Callable[[SlurmLab, str, str], None], str]] = {
    "cut": (SlurmLab.cut, "drop all packets between two hosts"),
    "join": (SlurmLab.join, "undo 'cut' for two hosts"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Not left to argparse: its releases differ in the treatment of a second "--", which belongs to the command.
    end = words.index("--") if "--" in words else len(words)
    parser = _make_parser()
    arguments, unknown = parser.parse_known_args(words[:end])
    arguments.argv = words[end + 1 :]
    if (arguments.verb in ("exec", "on")) != bool(arguments.argv):
        parser.error("'exec' and 'on' need a command to run, after '--'; other verbs take none")
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}")
    try:
        return _run(arguments)
    except (MonarchError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return error.exit_code if isinstance(error, MonarchError) else 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m monarch_hpc.testing.slurmlab",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--name", default="lab", help="name of the lab, if several are up (default: %(default)s)")
    which.add_argument("--base", type=Path, help="folder for the lab's files, instead of one made from the name")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(verb: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(verb, parents=[which], help=text, description=text[:1].upper() + text[1:] + ".")

    up = add("up", "start a lab; returns when all hosts are idle")
    up.add_argument("-N", "--hosts", type=int, default=4, help="number of compute hosts (default: %(default)s)")
    up.add_argument(
        "--share",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="show this folder on every host, read-only",
    )
    down = add("down", "end everything in a lab and remove its files")
    down.add_argument("--all", action="store_true", help="all labs made without --base, whatever their state")
    add("status", "show hosts, daemons and queue")
    for verb, text in (("exec", "run a command on the login host"), ("on", "run a command on any host")):
        command = add(verb, text)
        command.add_argument("--user", default="alice", help="alice, bob or root (default: %(default)s)")
        if verb == "on":
            command.add_argument("host", metavar="HOST", help="login, n1, n2, ...")
        command.usage = f"%(prog)s [--name NAME] [--user USER] {'HOST ' if verb == 'on' else ''}-- CMD [ARG ...]"
    add("shell", "open a shell on the login host").add_argument("--user", default="alice", help="user (default: alice)")
    for verb, (_, text) in _FAULTS.items():
        add(verb, text).add_argument("host", metavar="HOST", help="n1, n2, ...")
    for verb, (_, text) in _FAULTS_BETWEEN.items():
        two = add(verb, text)
        two.add_argument("host", metavar="HOST", help="n1, n2, ...")
        two.add_argument("other", metavar="HOST", help="another one")
    for verb, text in (("kill-slurmctld", "kill slurmctld; jobs continue"), ("start-slurmctld", "start slurmctld")):
        add(verb, text).add_argument("host", nargs="?", choices=[LOGIN], default=LOGIN, help="may be left out")
    add("reset", "repair all faults, end all jobs and users' processes")
    check = verbs.add_parser("check", help="check whether a lab can run on this machine, and list what is missing")
    check.add_argument("--packages", action="store_true", help="print only the missing Debian packages")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    verb: str = arguments.verb
    if verb == "check":
        return _check(arguments.packages)
    if verb == "down" and arguments.all:
        return _down_all()
    if verb == "up":
        return _up(SlurmLab(arguments.name, base=arguments.base, num_hosts=arguments.hosts, share=arguments.share))
    lab = SlurmLab(arguments.name, base=arguments.base)
    if verb in _FAULTS:
        _FAULTS[verb][0](lab, arguments.host)
        return 0
    if verb in _FAULTS_BETWEEN:
        _FAULTS_BETWEEN[verb][0](lab, arguments.host, arguments.other)
        return 0
    match verb:
        case "down":
            lab.down()
        case "status":
            print(_describe(lab))
        case "exec":
            return _attach(lab, arguments.argv, arguments.user, LOGIN)
        case "on":
            return _attach(lab, arguments.argv, arguments.user, arguments.host)
        case "shell":
            return _attach(lab, ["bash"], arguments.user, LOGIN)
        case "kill-slurmctld":
            lab.kill_slurmctld()
        case "start-slurmctld":
            lab.start_slurmctld()
        case "reset":
            lab.reset()
    return 0


def _up(lab: SlurmLab) -> int:
    started_s = time.monotonic()
    lab.up()
    command = f"{Path(sys.executable).name} -m monarch_hpc.testing.slurmlab"
    which = _which(lab)
    print(f"slurmlab '{lab.name}': {LOGIN} and {len(lab.hosts)} hosts idle after {time.monotonic() - started_s:.1f} s")
    print(f"  {command} exec{which} -- srun -N{len(lab.hosts)} hostname    # as alice, on {LOGIN}")
    print(f"  {command} shell{which}")
    print(f"  {command} down{which}")
    print(f"files and logs: {lab.base}")
    return 0


def _which(lab: SlurmLab) -> str:
    if SlurmLab(lab.name).base != lab.base:
        return f" --base {lab.base}"
    return "" if lab.name == "lab" else f" --name {lab.name}"


def _down_all() -> int:
    status = 0
    for path in find_labs(find_root(os.environ, os.geteuid())):
        try:
            SlurmLab(base=path).down()
            print(f"took down {path}")
        except (MonarchError, OSError, TimeoutError) as error:
            print(error, file=sys.stderr)
            status = 1
    return status


def _describe(lab: SlurmLab) -> str:
    lines = [f"slurmlab '{lab.name}' in {lab.base}"]
    for host in (*lab.logins, *lab.hosts):
        if lab.is_up(host):
            daemons = sorted(
                {text.split()[0] for _, text in lab.processes("root", host)} & {"slurmctld", "slurmd", "munged"}
            )
            state = f"up, {len(lab.processes(None, host))} processes; runs {', '.join(daemons) or 'no daemon'}"
        else:
            state = "no power"
        lines.append(f"  {host:6} {lab.address(host):13} {state}")
    if not lab.is_up():
        return "\n".join(lines)
    for argv in (["sinfo"], ["squeue"]):
        done = lab.run(argv, user="root")
        lines += ["", (done.stdout + done.stderr).rstrip()]
    return "\n".join(lines)


def _check(only_packages: bool) -> int:
    if only_packages:
        print(" ".join(find_missing_packages()))
        return 0
    problems = find_problems()
    for problem in problems:
        print(f"slurmlab cannot run here: {problem}", file=sys.stderr)
    if not problems:
        print("slurmlab can run here")
    return 1 if problems else 0


def _attach(lab: SlurmLab, argv: Sequence[str], user: str, host: str) -> int:
    """Run a command on this process's terminal or pipes; return its status, or 128 + the signal that ended it."""
    interactive = sys.stdin.isatty()
    early: list[int] = []
    for number in (*_FORWARDED, *_FROM_TERMINAL):
        signal.signal(number, lambda received, _frame: early.append(received))
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        folder = None
    # On a terminal the command stays in this process group, so that the terminal sends Ctrl-C to it.
    process = lab.popen(
        argv, user=user, host=host, folder=folder, stdin=None, stdout=None, stderr=None, new_session=not interactive
    )
    for number in (*_FORWARDED, *_FROM_TERMINAL):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    if interactive:
        for number in _FROM_TERMINAL:
            signal.signal(number, signal.SIG_IGN)
    for missed in early:
        process.send_signal(missed)
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, subprocess.SubprocessError):
        sys.exit(main())
