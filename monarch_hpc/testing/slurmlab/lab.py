"""`SlurmLab`: two login hosts and compute hosts with a real Slurm, as namespaces on this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing.slurmlab import slurmconf, users
from monarch_hpc.testing.slurmlab.daemons import Daemons
from monarch_hpc.testing.slurmlab.folder import LabFolder, Settings, find_root
from monarch_hpc.testing.slurmlab.hosts import HostSet
from monarch_hpc.testing.slurmlab.mending import mend
from monarch_hpc.testing.slurmlab.openings import find_needed_paths, is_closed, plan_openings
from monarch_hpc.testing.slurmlab.processes import HostProcess, read_command, read_uid
from monarch_hpc.testing.slurmlab.requirements import SYSTEM_PATH, find_problems
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN, LOGINS, Cluster
from monarch_hpc.testing.slurmlab.users import ROOT, Account
from monarch_hpc.testing.waiting import wait_until

__all__ = ["SlurmLab"]


class SlurmLab:
    """A lab; as a context manager it is up inside the ``with`` and leaves nothing behind.

    An object may also refer to a lab made by another process: every method but `up` only needs its name or base.

    Args:
        name: distinguishes labs on one machine, which share nothing but its cores.
        base: folder for all files of the lab; by default one made from *name*.
        num_hosts: number of compute hosts, ``n1`` and so on.
        share: further folders of this machine to show on every host, read-only.
        tied: the lab dies with this process, even if this is killed. Otherwise it stays until `down`.
    """

    def __init__(
        self,
        name: str = "lab",
        *,
        base: Path | None = None,
        num_hosts: int = 4,
        share: Iterable[Path] = (),
        tied: bool = False,
    ) -> None:
        if not 1 <= num_hosts <= 64:
            raise LabError(name, f"{num_hosts} hosts requested; a lab has 1 to 64")
        base = base or find_root(os.environ, os.geteuid()) / name
        self._folder = LabFolder(Path(os.path.abspath(base)))
        self._wanted = Cluster(num_hosts=num_hosts)
        self._share = tuple(Path(os.path.abspath(path)) for path in share)
        self._tied = tied
        self._machines = HostSet(self._folder, tied)
        self._daemons = Daemons(self._folder, self._machines)

    # ---- life

    def up(self) -> None:
        """Start the lab; all hosts are idle when this returns.

        Raises:
            LabError: a lab of this name is up, this machine lacks a requirement, or a part did not start. Nothing is
                left behind.
        """
        if problems := find_problems():
            raise LabError(self.name, "; ".join(problems))
        with self._folder.open_locked(create=True):
            if self._machines.names_up():
                raise LabError(self.name, "it is up already; use it, take it down, or choose another name")
            try:
                # Remove the remains of a lab whose starter was killed.
                self._folder.clear()
                self._start()
            except BaseException:
                self._stop()
                raise

    def down(self) -> None:
        """End every process of the lab and remove its files, even if it is half made or half removed.

        Raises:
            LabError: there is no such lab.
        """
        # A start that was killed right away leaves an empty folder.
        with self._folder.open_locked(create=self._folder.path.is_dir()):
            self._stop()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A test may have taken the lab down.
        if self._folder.exists():
            self.down()

    def _start(self) -> None:
        folder, cluster = self._folder, self._wanted
        folder.make_folders()
        accounts = users.plan_accounts(folder.homes, {entry.pw_uid for entry in pwd.getpwall()})
        settings = Settings(
            cluster,
            {one.name: one.uid for one in accounts},
            Path(sys.executable).parent,
            (*find_needed_paths(), *self._share),
        )
        folder.write_settings(settings)
        folder.write_files(cluster, accounts)
        self._boot(cluster.machines, settings)
        self._daemons.start_munged()
        self.start_slurmctld()
        for host in cluster.hosts:
            self._daemons.start("slurmd", host)
        self._check_interpreter()
        self.wait_idle()
        self._machines.run_plain(LOGIN, slurmconf.reservation_argv(cluster))

    def _stop(self) -> None:
        self._machines.power_off(list(self._folder.read_holders()))
        self._machines.close()
        # The last processes may still write a file while the folder is being emptied.
        wait_until(f"{self._folder.path} to go", self._try_remove, 10.0)

    def _try_remove(self) -> bool:
        with contextlib.suppress(OSError):
            self._folder.remove()
        return not self._folder.path.exists()

    def _check_interpreter(self) -> None:
        done = self.run([sys.executable, "-c", "import monarch_hpc"], timeout_s=60)
        if done.returncode:
            raise LabError(
                self.name,
                f"alice cannot start {sys.executable} with monarch_hpc: {done.stderr.strip() or done.returncode}; "
                "make the environment and the package readable by all users",
            )

    # ---- properties

    @property
    def name(self) -> str:
        """The lab's name."""
        return self._folder.path.name

    @property
    def base(self) -> Path:
        """The lab's folder, at the same path on this machine and on every host."""
        return self._folder.path

    @property
    def log(self) -> Path:
        """The folder of the daemons' logs."""
        return self._folder.log

    @property
    def settings(self) -> Settings:
        """The recorded settings of the lab."""
        return self._folder.read_settings()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The compute hosts; the login hosts are `logins`."""
        return (self.settings.cluster if self._folder.exists() else self._wanted).hosts

    @property
    def logins(self) -> tuple[str, ...]:
        """The login hosts, which share the homes; the first one has slurmctld."""
        return LOGINS

    def address(self, host: str) -> str:
        """The IPv4 address of a host."""
        return self.settings.cluster.address(host)

    def home(self, user: str = "alice") -> Path:
        """A user's home, at the same path on this machine and on every host."""
        return self._account(user).home

    def scratch(self, user: str = "alice") -> Path:
        """A user's folder beside the home, which all hosts can write whatever `set_home` says."""
        return self._folder.scratch / self._account(user).name

    def is_up(self, host: str = LOGIN) -> bool:
        """Whether a host has power."""
        return self._machines.is_up(host)

    def processes(self, user: str | None = None, host: str = LOGIN) -> list[tuple[int, str]]:
        """The processes on a host, as (process id outside the host, command line).

        Args:
            user: only this user's processes; None for all, including root's.
            host: name of the host.
        """
        uid = None if user is None else self._account(user).uid
        pids = [pid for pid in self._machines.find_pids(host)[host] if uid is None or read_uid(pid) == uid]
        return [(pid, " ".join(command)) for pid in pids if (command := read_command(pid))]

    # ---- commands

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        user: str = "alice",
        host: str = LOGIN,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = subprocess.PIPE,
        stderr: int | IO[str] | None = subprocess.PIPE,
        new_session: bool = True,
    ) -> HostProcess:
        """Start a command on a host. It dies with the host or the lab, not with the caller.

        Args:
            argv: the command.
            user: ``alice``, ``bob`` or ``root``.
            host: name of the host.
            env: added to a fresh login's environment; nothing is inherited from the caller.
            folder: working directory; by default, or if the user may not enter it, the home folder.
            stdin: as for `subprocess.Popen`; likewise *stdout* and *stderr*.
            new_session: start a new process group, so that `HostProcess.signal_group` acts like Ctrl-C. False keeps
                the caller's terminal.
        """
        account = self._account(user)
        path = f"{self.settings.bin_folder}:{SYSTEM_PATH}"
        return self._machines.popen(
            host,
            account,
            [str(word) for word in argv],
            env=users.login_environment(account, path, os.environ.get("TERM", "dumb")) | dict(env or {}),
            folder=folder or account.home,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            new_session=new_session,
        )

    def run(
        self,
        argv: Sequence[str | Path],
        user: str = "alice",
        host: str = LOGIN,
        *,
        timeout_s: float = 60.0,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and return its exit status and output.

        Args:
            argv: the command; for *user*, *host*, *env* and *folder* see `popen`.
            timeout_s: after this many seconds the command and its process group are killed.
            check: raise if the exit status is not 0.
            stdin: input of the command; by default empty.

        Raises:
            subprocess.CalledProcessError: the status is not 0, and *check* is set; the output is added as a note.
            subprocess.TimeoutExpired: the command timed out; likewise.
        """
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = self.popen(argv, user=user, host=host, env=env, folder=folder, stdin=source)
        with process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except BaseException as error:
                process.signal_group(signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        out, err = process.communicate(timeout=5)
                        error.add_note(f"stdout: {out}\nstderr: {err}")
                raise
        if check and process.returncode:
            failure = subprocess.CalledProcessError(process.returncode, list(argv), out, err)
            failure.add_note(f"stdout: {out}\nstderr: {err}")
            raise failure
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def _account(self, user: str) -> Account:
        if user == ROOT.name:
            return ROOT
        uids = self.settings.uids
        if user not in uids:
            raise LabError(self.name, f"no user '{user}'; there are {', '.join(uids)} and root")
        return Account(user, uids[user], self._folder.homes / user)

    # ---- faults

    def kill_host(self, host: str) -> None:
        """Cut the power of a compute host, or the second login host: all its processes vanish without any cleanup."""
        self._check_plain(host)
        with self._folder.open_locked():
            self._machines.power_off([host])
            self._machines.unplug(host)

    def boot_host(self, host: str) -> None:
        """Boot a host without power; a compute host with its slurmd."""
        self._check_plain(host)
        with self._folder.open_locked():
            self._boot([host], self.settings)
            if host in self.hosts:
                self._daemons.start("slurmd", host)

    def link_down(self, host: str) -> None:
        """Unplug the network cable of a compute host, or of the second login host."""
        self._check_plain(host)
        self._machines.set_links([host], "down")

    def link_up(self, host: str) -> None:
        """Plug the network cable in again."""
        self._check_plain(host)
        self._machines.set_links([host], "up")

    def set_home(self, access: Literal["rw", "ro", "none"]) -> None:
        """Show the homes on compute hosts as the site has them: writable, read-only, or not at all.

        Processes that have a file open there keep it. A host that boots has writable ones.
        """
        for host in filter(self.is_up, self.hosts):
            self._machines.set_home(host, self._folder.homes, access)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Drop all packets between two compute hosts, or only those from *one*; each still reaches all others."""
        self._set_between(one, other, "cut", one_way=one_way)

    def join(self, one: str, other: str) -> None:
        """Undo `cut`."""
        self._set_between(one, other, "joined")

    def _set_between(self, one: str, other: str, state: str, *, one_way: bool = False) -> None:
        for host, there in ((one, other), (other, one))[: 1 if one_way else 2]:
            self._check_compute(host)
            self._machines.set_neighbour(host, self.address(there), state)

    def kill_slurmd(self, host: str) -> None:
        """Kill slurmd on a compute host; jobs' processes stay."""
        self._check_compute(host)
        self._daemons.kill("slurmd", host)

    def start_slurmd(self, host: str) -> None:
        """Start slurmd on a compute host."""
        self._check_compute(host)
        self._daemons.start("slurmd", host)

    def kill_slurmctld(self) -> None:
        """Kill slurmctld; jobs continue, and each of Slurm's commands fails after 9 s."""
        self._daemons.kill("slurmctld", LOGIN)

    def start_slurmctld(self) -> None:
        """Start slurmctld with its saved jobs, and wait until it answers."""
        self._daemons.start_slurmctld()

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Wait until Slurm reports every compute host as idle; a `TimeoutError` has the state of each."""
        wanted = dict.fromkeys(self.hosts, "idle")
        wait_until("idle hosts", self.node_states, timeout_s, accept=lambda states: states == wanted, interval_s=0.05)

    def node_states(self) -> dict[str, str]:
        """Slurm's state of each compute host, such as ``idle``, ``mixed``, ``down*``."""
        return self._daemons.node_states()

    def reset(self, timeout_s: float = 60.0) -> None:
        """Undo the effects of tests: end all jobs and users' processes, repair all faults, wait for idle hosts.

        Home folders keep their files.
        """
        for host in self.settings.cluster.machines:
            if not self.is_up(host):
                self.boot_host(host)
        self.set_home("rw")
        mend(self._machines, self._daemons, self.settings, timeout_s)

    # ---- parts

    def _check_plain(self, host: str) -> None:
        if host not in LOGINS[1:]:
            self._check_compute(host)

    def _check_compute(self, host: str) -> None:
        if host not in self.hosts:
            reason = "the login host carries the lab's network and slurmctld" if host == LOGIN else "no such host"
            raise LabError(self.name, f"not on '{host}': {reason}; compute hosts are {', '.join(self.hosts)}")

    def _boot(self, names: Sequence[str], settings: Settings) -> None:
        plan = plan_openings(settings.needed, self._folder.path, is_closed, lambda path: path.resolve())
        self._machines.boot(names, settings.cluster, plan)
