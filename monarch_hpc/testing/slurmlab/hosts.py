"""The hosts of a lab as machines: power, network, and commands on them; independent of Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePath
from typing import IO

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing.slurmlab.folder import LabFolder
from monarch_hpc.testing.slurmlab.namespaces import (
    READY,
    enter_argv,
    has_permanent,
    holder_argv,
    home_script,
    link_command,
    login_network,
    neighbour_command,
    plug_in,
    port_of,
    render_init,
    user_argv,
)
from monarch_hpc.testing.slurmlab.openings import Opening
from monarch_hpc.testing.slurmlab.processes import (
    HostProcess,
    ProcessIdentity,
    find_children,
    find_pids_in,
    namespace_of_children,
    read_command,
    read_uid,
)
from monarch_hpc.testing.slurmlab.requirements import SYSTEM_PATH, tool
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN, Cluster
from monarch_hpc.testing.slurmlab.users import ROOT, Account
from monarch_hpc.testing.waiting import wait_until

__all__ = ["HostSet"]

_BOOT_TIMEOUT_S = 30.0
_POWER_OFF_TIMEOUT_S = 30.0
# Environment of the lab's own commands on the machine; nothing is inherited from the caller's shell.
_PLAIN_ENVIRONMENT = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}


class HostSet:
    """The hosts of one lab.

    Args:
        folder: the lab's folder; its recorded holders are the hosts that exist.
        tied: hosts booted through this object die with this process, however it ends.
    """

    def __init__(self, folder: LabFolder, tied: bool) -> None:
        self._folder = folder
        self._tied = tied
        # A tied holder dies with the *thread* that started it, so this thread must live as long as the hosts.
        self._starter: ThreadPoolExecutor | None = None
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: list[HostProcess] = []

    # ---- power

    def boot(self, names: Sequence[str], cluster: Cluster, openings: Sequence[Opening]) -> None:
        """Make the hosts *names* and connect them; the login host, which has the switch, must come first or be up.

        Raises:
            LabError: a host did not come up; the message has its output.
        """
        if self._starter is None:
            self._starter = ThreadPoolExecutor(1, thread_name_prefix="slurmlab")
        started = {name: self._start_holder(name, openings, self._starter) for name in names}
        for name, holder in started.items():
            self._wait_ready(name, holder)
            if name == LOGIN:
                self._ip(LOGIN, login_network(cluster))
            else:
                # The port of a host whose power was just cut may still exist.
                self.unplug(name)
                on_login, on_host = plug_in(name, cluster, self.init_pid(name))
                self._ip(LOGIN, on_login)
                self._ip(name, on_host)

    def _start_holder(
        self, name: str, openings: Sequence[Opening], starter: ThreadPoolExecutor
    ) -> subprocess.Popen[bytes]:
        if self.is_up(name):
            raise LabError(self._folder.path.name, f"host {name} is up already")
        argv = holder_argv(name, render_init(name, self._folder.path, openings), self._tied)
        with open(self._folder.log / f"host.{name}.log", "wb") as log:
            holder = starter.submit(
                subprocess.Popen[bytes],
                argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env=_PLAIN_ENVIRONMENT,
                # A Ctrl-C at the terminal that starts the lab must not switch its hosts off.
                start_new_session=True,
            ).result()
        identity = ProcessIdentity.of(holder.pid)
        if identity is None:
            holder.wait()
            raise LabError(self._folder.path.name, f"host {name} did not start: {self._log_tail(name)}")
        self._folder.write_holder(name, identity)
        self._holders[name] = holder
        assert holder.stdin is not None
        with holder.stdin as stdin, contextlib.suppress(BrokenPipeError):
            stdin.write(b"go\n")
        return holder

    def _wait_ready(self, name: str, holder: subprocess.Popen[bytes]) -> None:
        assert holder.stdout is not None
        with holder.stdout as stdout:
            os.set_blocking(stdout.fileno(), False)
            try:
                # None: no output yet. Empty: the host ended before it was ready.
                line = wait_until(
                    f"host {name}", lambda: stdout.read(64), _BOOT_TIMEOUT_S, accept=_is_answer, interval_s=0.004
                )
            except TimeoutError as error:
                raise LabError(self._folder.path.name, f"{error}: {self._log_tail(name)}") from error
        if line != f"{READY}\n".encode():
            raise LabError(self._folder.path.name, f"host {name} did not come up: {self._log_tail(name)}")

    def power_off(self, names: Sequence[str]) -> None:
        """Cut the power of hosts: when this returns all their processes are gone, without any cleanup."""
        namespaces = {}
        recorded = self._folder.read_holders()
        for name in names:
            if name in recorded and (namespace := self._kill_holder(recorded[name])):
                namespaces[name] = namespace
        living = partial(find_pids_in, namespaces.values())
        hosts = ", ".join(namespaces)
        wait_until(
            f"all processes of {hosts} to end", living, _POWER_OFF_TIMEOUT_S, accept=_are_empty, interval_s=0.005
        )
        for name in names:
            if holder := self._holders.pop(name, None):
                holder.wait()
            self._folder.drop_holder(name)
        for command in self._commands:
            command.poll()

    def _kill_holder(self, holder: ProcessIdentity) -> str | None:
        namespace = namespace_of_children(holder.pid)
        # A holder that has not read its first line is still in our namespace, which would never become empty.
        if not holder.kill() or namespace == namespace_of_children(os.getpid()):
            return None
        return namespace

    def names_up(self) -> list[str]:
        """The hosts that have power."""
        return [name for name, holder in self._folder.read_holders().items() if holder.is_alive()]

    def is_up(self, name: str) -> bool:
        """Whether a host has power."""
        holder = self._folder.read_holder(name)
        return holder is not None and holder.is_alive()

    # ---- network

    def set_links(self, names: Sequence[str], state: str) -> None:
        """Set the links of hosts ``up`` or ``down``."""
        self._ip(LOGIN, "".join(f"link {link_command(name, state)}\n" for name in names))

    def set_neighbour(self, name: str, address: str, state: str) -> None:
        """Set whether a host reaches *address*, or a whole network: ``cut`` or ``joined``."""
        self._ip(name, f"neigh {neighbour_command(address, state)}\n")

    def with_cut_neighbours(self, names: Sequence[str]) -> list[str]:
        """Those of these hosts that do not reach some address since `set_neighbour`."""
        tables = {name: Path(f"/proc/{self.init_pid(name)}/net/arp").read_text() for name in names}
        return [name for name, table in tables.items() if has_permanent(table)]

    def unplug(self, name: str) -> None:
        """Remove a host's port from the switch, if it exists."""
        argv = [tool("ip"), "link", "del", port_of(name)]
        subprocess.run(self._network_argv(LOGIN) + argv, env=_PLAIN_ENVIRONMENT, capture_output=True, check=False)

    def _ip(self, name: str, commands: str) -> None:
        argv = [*self._network_argv(name), tool("ip"), "-batch", "-"]
        done = subprocess.run(
            argv, input=commands, env=_PLAIN_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=30
        )
        if done.returncode:
            raise LabError(self._folder.path.name, f"no network for {name}: {done.stderr.strip()}")

    def _network_argv(self, name: str) -> list[str]:
        # Only the network namespace: `ip` must see the same process ids as this process.
        return [tool("nsenter"), "-t", str(self.init_pid(name)), "-n"]

    # ---- files

    def set_home(self, name: str, homes: Path, access: str) -> None:
        """Show the folder *homes* on a host ``rw``, ``ro``, or ``none`` of it."""
        mounts = Path(f"/proc/{self.init_pid(name)}/mountinfo").read_text()
        escaped = str(homes).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
        if access != "rw" or f" {escaped} " in mounts:
            self.run_plain(name, ["bash", "-c", home_script(homes, access)])

    # ---- commands

    def init_pid(self, name: str) -> int:
        """The first process of a host, as seen from outside.

        Raises:
            LabError: the host has no power.
        """
        holder = self._folder.read_holder(name)
        children = find_children(holder.pid) if holder and holder.is_alive() else []
        if not children:
            raise LabError(self._folder.path.name, f"host {name} has no power; see 'status', or boot it")
        return children[0]

    def find_pids(self, *names: str) -> dict[str, list[int]]:
        """All processes on each of these hosts except its first one, as seen from outside."""
        first = {name: self.init_pid(name) for name in names}
        namespaces = {name: os.readlink(f"/proc/{init_pid}/ns/pid") for name, init_pid in first.items()}
        found = find_pids_in(namespaces.values())
        return {name: [pid for pid in found[namespace] if pid != first[name]] for name, namespace in namespaces.items()}

    def kill(self, names: Sequence[str], uids: Collection[int], but: str = "") -> None:
        """Kill the processes of these users on these hosts, except those of the program *but*."""
        for pids in self.find_pids(*names).values():
            for pid in pids:
                if read_uid(pid) in uids and PurePath(*read_command(pid)[:1]).name != but:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def popen(
        self,
        name: str,
        account: Account,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        stdin: int | IO[str] | None,
        stdout: int | IO[str] | None,
        stderr: int | IO[str] | None,
        new_session: bool,
    ) -> HostProcess:
        """Start a command on a host; the arguments are those of `SlurmLab.popen`."""
        command = HostProcess(
            [*enter_argv(self.init_pid(name)), *user_argv(account, folder, argv, new_session)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=dict(env),
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._commands = [one for one in self._commands if one.poll() is None]
        self._commands.append(command)
        return command

    def run_plain(self, name: str, argv: Sequence[str], timeout_s: float = 60.0) -> str:
        """Run one of the lab's own commands as root and return its output.

        Raises:
            LabError: the command failed, or took longer than *timeout_s*.
        """
        command = [*enter_argv(self.init_pid(name)), *user_argv(ROOT, Path("/"), argv, True)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=_PLAIN_ENVIRONMENT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(
                self._folder.path.name, f"'{argv[0]}' on {name} did not end within {timeout_s:g} s"
            ) from error
        if done.returncode:
            words = (done.stderr + done.stdout).strip()
            raise LabError(self._folder.path.name, f"'{' '.join(argv)}' failed on {name}: {words}")
        return done.stdout

    def close(self) -> None:
        """Reap the commands that ended with the hosts, and end the thread that started the hosts."""
        deadline_s = time.monotonic() + _POWER_OFF_TIMEOUT_S
        for command in self._commands:
            command.wait(max(0.1, deadline_s - time.monotonic()))
        self._commands = []
        if self._starter is not None:
            self._starter.shutdown()
            self._starter = None

    def _log_tail(self, name: str) -> str:
        text = (self._folder.log / f"host.{name}.log").read_text(errors="replace").strip()
        return text[-2000:] or "(it wrote nothing)"


def _is_answer(line: bytes | None) -> bool:
    return line is not None


def _are_empty(found: dict[str, list[int]]) -> bool:
    return not any(found.values())
