"""Our commands, run by alice on the login host, with separate state for each test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import HostProcess, SlurmLab
from monarch_hpc.wire.start import NO_RUN, RUN_COOKIE
from tests.command_server import CommandServer
from tests.system.support.programs import read_until

_STILL_S = 25.0
"""Longer than a process stands still."""

_NO_ANSWER = ("no head", "head does not answer")
"""The states of an allocation whose head `status` has asked in vain."""

HOLD = "exec sleep 600"
HOSTS = ("n1", "n2", "n3", "n4")

LOSES_ITS_SECOND_HOST = """
import time
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorDied, MeshDied, endpoint

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Where(Actor):
    @endpoint
    def host(self): return monarch_hpc.context().proc.host
    @endpoint
    def sleep(self): time.sleep(600)

procs = monarch_hpc.hosts().spawn_procs()
where = procs.spawn("where", Where)
print("ready", *where.host.call().get().values(), flush=True)
try:
    where.slice(hosts=1).sleep.call_one().get()
"""
"""A program whose actor there sleeps until it dies: `ActorDied` is yet to be caught."""

SLEEPER = """
import os, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Sleeper(Actor):
    @endpoint
    def ready(self): return os.environ.get("CUDA_VISIBLE_DEVICES")
    @endpoint
    def sleep(self): time.sleep(600)

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})
sleepers = procs.spawn("sleeper", Sleeper)
print("gpus", sorted(set(sleepers.ready.call().get().values())), flush=True)
print("ready", flush=True)
"""
"""Two procs on each host, whose actors print `ready`."""


@dataclass
class Alice:
    """One user with an empty registry and an empty shared folder.

    Args:
        lab: the lab.
        folder: her folder, empty at first.
        env: additions to her environment.
        server: runs her commands; without one, each gets an interpreter of its own.
    """

    lab: SlurmLab
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    server: CommandServer | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state" / "monarch-hpc"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "MONARCH_HPC_PATHS__SHARED": str(self.shared)}
        return {**own, **self.env, **more}

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of our commands to its end."""
        own = self.environment(env or {})
        if self.server is None:
            return self.lab.run(argv(*arguments), env=own, timeout_s=timeout_s)
        return self.server.run(arguments, own, timeout_s)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> HostProcess:
        """Start one of our commands."""
        return self.lab.popen(argv(*arguments), env=self.environment(env or {}))

    def slurm(self, *command: str) -> str:
        """Run one of Slurm's commands and return its output."""
        return self.lab.run(command, check=True).stdout

    def batch(self, *arguments: str, folder: Path | None = None, timeout_s: float = 180.0) -> int:
        """Run a batch job, submitted from *folder*, to its end, and return its exit status.

        `sbatch --wait` would look after 2, 6, 12, 20, 30 and 42 s.
        """
        submit = ["sbatch", "--parsable", *arguments]
        job = self.lab.run(submit, folder=folder, check=True).stdout.strip()
        ended = re.compile(r"JobState=(?:COMPLETED|FAILED) .* ExitCode=(\d+):0 ")
        found = wait_until(
            f"the end of job {job}",
            lambda: self.slurm("scontrol", "show", "job", "-o", job),
            timeout_s,
            accept=ended.search,
            interval_s=0.1,
        )
        match = ended.search(found)
        assert match is not None
        return int(match[1])

    def status(self, *arguments: str) -> list[dict[str, object]]:
        """Return the allocations of `status --json`.

        It waits four seconds for a head, and then shows no hosts and runs: as long as none answers, it is asked again.
        """
        allocations: list[dict[str, object]] = []

        def ask() -> bool:
            document = json.loads(self.run("status", "--json", *arguments).stdout)
            assert document["schema"] == 1
            allocations[:] = document["allocations"]
            return not any(str(one["state"]).startswith(_NO_ANSWER) for one in allocations)

        with contextlib.suppress(TimeoutError):  # it is gone: the test decides what that means
            wait_until("the heads", ask, _STILL_S)
        return allocations

    def jobs(self) -> dict[str, str]:
        """Return the states of alice's jobs, by job name."""
        lines = self.slurm("squeue", "--me", "-h", "-o", "%j %T").splitlines()
        return dict(line.split() for line in lines)

    def fill(self) -> None:
        """Take all hosts, so that later requests have to wait."""
        self.slurm("sbatch", "-Q", "-N4", "--exclusive", "-J", "filler", "-o", "/dev/null", "--wrap", HOLD)
        wait_until("all hosts to be taken", self.jobs, accept=lambda jobs: jobs.get("filler") == "RUNNING")

    def free(self) -> None:
        """Release the hosts."""
        self.slurm("scancel", "--name=filler")


@pytest.fixture
def alice(lab: SlurmLab, command_server: CommandServer, request: pytest.FixtureRequest) -> Alice:
    """Alice, with separate state for this test.

    Slurm may pass over any host that is slow to answer: a test that expects certain ones requests them (`-w`), so that
    its job waits for them, or reads which it got.
    """
    folder = lab.home() / f"test-{zlib.crc32(request.node.nodeid.encode()):x}"
    return Alice(lab, folder, server=command_server)


class Standing:
    """An allocation `dev` for one test after the other: each finds it as it was made, and leaves it so.

    Args:
        lab: the lab.
        server: runs the commands.
        folder: for alice's folders, one for each allocation.
    """

    def __init__(self, lab: SlurmLab, server: CommandServer, folder: Path) -> None:
        self._lab = lab
        self._server = server
        self._folder = folder
        self._taken: Alice | None = None
        self._flags: tuple[str, ...] = ()
        self._number = 0

    def take(self, flags: Sequence[str], env: Mapping[str, str]) -> Alice:
        """Return alice with a ready allocation that was made with these flags and environment."""
        alice = self._taken
        if alice is None or (self._flags, alice.env) != (tuple(flags), env):
            self.give_back()
            self._number += 1
            alice = self._taken = Alice(self._lab, self._folder / str(self._number), dict(env), self._server)
            self._flags = tuple(flags)
            done = alice.run("alloc", "dev", *flags)
            assert done.returncode == 0, done.stderr
        return alice

    def check(self) -> None:
        """Check that a test left nothing in the allocation; otherwise the next test gets another one."""
        alice = self._taken
        assert alice is not None
        try:
            wait_until("no proc of a run", lambda: procs_left(alice), 120.0, accept=lambda left: not left)
            wait_until("no command", lambda: alice.lab.processes("alice"), 120.0, accept=lambda left: not left)
            # A host that the processors are kept from is suspect for a moment.
            wait_until("its hosts", lambda: alice.status("dev"), 120.0, accept=_is_as_made)
        except BaseException:
            self._taken = None
            self._lab.reset()
            raise

    def give_back(self) -> None:
        """Release the allocation, if there is one, and check that nothing is left of it."""
        alice, self._taken = self._taken, None
        if alice is not None:
            release(alice)


def _is_as_made(allocations: list[dict[str, object]]) -> bool:
    (shown,) = allocations
    assert isinstance(shown["hosts"], list)
    hosts = {host["state"] for host in shown["hosts"]}
    return (shown["state"], shown["runs"], shown["missing"], hosts) == ("ready", [], [], {"alive"})


@contextlib.contextmanager
def no_connections(alice: Alice) -> Iterator[None]:
    """Let nothing pass between login and hosts but Slurm's own connections, as at many sites."""
    # Our connections have ports from the kernel's range at both ends, Slurm's at one end only. 6 is TCP where no
    # /etc/protocols says so.
    rule = f"to {alice.lab.address('login')} ipproto 6 sport 32768-60999 dport 32768-60999 blackhole".split()
    for host in HOSTS:
        alice.lab.run(["ip", "rule", "add", *rule], user="root", host=host, check=True)
    yield
    for host in HOSTS:
        alice.lab.run(["ip", "rule", "del", *rule], user="root", host=host, check=True)


def declare_down(alice: Alice, *hosts: str) -> None:
    """Let Slurm know at once what it would find out itself, once a host has not answered for `SlurmdTimeout`."""
    update = ["scontrol", "update", f"NodeName={','.join(hosts)}", "State=DOWN", "Reason=no power"]
    alice.lab.run(update, user="root", check=True)


def release(alice: Alice) -> None:
    """Release all allocations, and check that nothing is left of them."""
    done = alice.run("release", "--all")
    assert done.returncode == 0, done.stderr
    assert alice.jobs() == {}
    wait_until_left(alice)


def wait_until_left(alice: Alice, *hosts: str) -> None:
    """Wait until no process of hers is on these hosts, or on any: one may end after Slurm has forgotten its job."""

    def left() -> dict[str, object]:
        up = filter(alice.lab.is_up, hosts or HOSTS)
        return {host: processes for host in up if (processes := alice.lab.processes("alice", host))}

    wait_until("the end of all processes", left, accept=lambda found: not found)


def procs_left(alice: Alice) -> list[str]:
    """The procs of runs, on all hosts; agents and zygotes belong to no run."""
    of_run = re.compile(rf"(?:^|\0){RUN_COOKIE}=(?!{NO_RUN})[0-9a-f]".encode())
    found = []
    for host in filter(alice.lab.is_up, HOSTS):
        for pid, command in alice.lab.processes("alice", host):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if of_run.search(Path(f"/proc/{pid}/environ").read_bytes()):
                    found.append(f"{host}: {pid} {command}")
    return found


def steps(alice: Alice) -> list[str]:
    """Her steps, but for the batch scripts."""
    lines = alice.slurm("squeue", "--me", "-h", "-s", "-o", "%i %j").splitlines()
    return sorted(line for line in lines if "batch" not in line)


def wait_for_steps(alice: Alice, wanted: list[str]) -> None:
    """Wait until she has these steps: Slurm lists one for a moment after its end, such as that of a relay."""
    wait_until("her steps", lambda: steps(alice), 120.0, accept=lambda seen: seen == wanted)


def kill_all_on_login(alice: Alice) -> None:
    for pid, _ in alice.lab.processes("alice", "login"):
        with contextlib.suppress(ProcessLookupError):  # one may end with another
            os.kill(pid, signal.SIGKILL)


FOUR = ("-N", "4", "-t", "30", "--gpus-per-node", "4")


@pytest.fixture
def held(standing: Standing) -> Iterator[Alice]:
    """Alice with a ready allocation `dev` of four hosts, which other tests use, too."""
    yield standing.take(FOUR, {})
    standing.check()


@pytest.fixture
def held_alone(alice: Alice) -> Iterator[Alice]:
    """Alice with a ready allocation `dev` of four hosts, for tests that damage it."""
    done = alice.run("alloc", "dev", *FOUR)
    assert done.returncode == 0, done.stderr
    yield alice
    release(alice)


def write(alice: Alice, name: str, text: str) -> str:
    path = alice.folder / name
    alice.lab.run(["sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', str(path)], stdin=text, check=True)
    return str(path)


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "monarch_hpc.cli", *arguments]


def count_calls(alice: Alice, *commands: str) -> Path:
    """Put counters before Slurm's commands on alice's PATH; return the file that has a line for each call."""
    count = alice.folder / "count"
    write(alice, "count", "")
    script = '#!/bin/sh\necho {0} "$@" >> {1}\nexec /usr/bin/{0} "$@"\n'
    put_on_path(alice, {command: script.format(command, count) for command in commands})
    return count


def put_on_path(alice: Alice, scripts: Mapping[str, str]) -> None:
    """Put scripts of these names first on alice's PATH."""
    for name, script in scripts.items():
        path = write(alice, f"bin/{name}", script)
        alice.lab.run(["chmod", "755", path], check=True)
    path = alice.lab.run(["sh", "-c", "echo $PATH"]).stdout.strip()
    alice.env |= {"PATH": f"{alice.folder}/bin:{path}"}


_ANNOUNCE = """
import sys, time
from pathlib import Path
from monarch_hpc.attach.head.orders import announce_job_end
assert announce_job_end(Path(sys.argv[1]), time.time() + float(sys.argv[2]), 30.0)
"""


def announce_end(alice: Alice, directory: Path, left_s: float) -> None:
    """Tell the head of the allocation in *directory* that its job ends in *left_s* seconds; it does not."""
    alice.lab.run([sys.executable, "-c", _ANNOUNCE, str(directory), str(left_s)], check=True)


def until_printed(process: HostProcess, words: str) -> str:
    """Read the output of *process* up to a line with *words*."""
    assert process.stdout is not None
    return read_until(process.stdout, words, process.stderr)
