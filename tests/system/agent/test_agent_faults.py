"""Agents, heads and zygotes that are killed, stopped or missing: nothing is left but an error that names the cause."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.allocation.heads import read_head
from monarch_hpc.allocation.ready import read_ready
from monarch_hpc.allocation.settings import write_config
from monarch_hpc.attach.attach import attach
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.schema import Config
from monarch_hpc.core.errors import AllocationError, AuthenticationError, VersionMismatch
from monarch_hpc.core.ids import Role
from monarch_hpc.core.storage.files import private_dir, read_json, write_json, write_private
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import hosts_of, memory_group
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEnded
from monarch_hpc.wire.control.procs import ProcEnded, SpawnFailed
from tests.child import child
from tests.system.support.agent_client import Client, alive, cookie_holders


@pytest.fixture
def dead_s(request: pytest.FixtureRequest) -> float:
    """No agent is lost by its silence but where a test waits for that."""
    return float(getattr(request, "param", 600.0))


@pytest.fixture
def config(config: Config) -> Config:
    """Procs have all the time that they may need to end by themselves."""
    return replace(config, agent=replace(config.agent, grace_s=60.0))


def states(directory: Path) -> list[object]:
    status = query_status(directory, 60.0)
    return [host["state"] for host in status["hosts"]] if status else []


GRANDCHILD = (
    "import subprocess, time\n"
    "print(subprocess.Popen(['setsid', 'sleep', '601'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
    "time.sleep(600)"
)


def test_a_killed_agent_takes_its_procs_along(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        mesh = client.spawn([0, 1], 1, GRANDCHILD)
        wait_until("two grandchildren", lambda: client.lines(mesh, 0) and client.lines(mesh, 1))
        kept, lost = int(client.lines(mesh, 0)[0]), int(client.lines(mesh, 1)[0])
        hosts_of(directory)[1].kill_agent()
        message = client.wait(HostEnded)
        assert (message.host, message.run) == (1, "aaaaaaaa")
        assert "agent on local1" in message.cause
        wait_until("the end of the grandchild on the lost host", lambda: not alive(lost))
        assert alive(kept)
        wait_until("the loss", lambda: states(directory), accept=lambda seen: seen == ["alive", "lost"])
        # The rest of the allocation goes on, and reports the missing host.
        client.spawn_ready([0])
        client.spawn([1])
        assert client.wait(SpawnFailed).cause.startswith("the host is lost: ")
    with Client(directory, "bbbbbbbb") as later:
        assert [host.name for host in later.opened.hosts] == ["local0"]


def test_a_killed_head_ends_all(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([0, 1])
        hosts_of(directory)[0].kill_agent()
        wait_until("the loss of the head", lambda: client.lost)
        wait_until("the end of the procs", lambda: not any(alive(pid) for pid in pids))
        wait_until("the end of the other agent", lambda: not cookie_holders(directory))


@pytest.mark.parametrize("dead_s", [4.0], indirect=True, ids=[""])
def test_a_stopped_host_is_lost(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([1])
        frozen = hosts_of(directory)[1].agent
        os.kill(frozen, signal.SIGSTOP)
        try:
            silence = re.search(r"no heartbeat for ([\d.]+) s", client.wait(HostEnded).cause)
            assert silence is not None and float(silence[1]) >= 4.0
            wait_until("the loss", lambda: states(directory), accept=lambda seen: seen == ["alive", "lost"])
        finally:
            os.kill(frozen, signal.SIGCONT)
        # The agent finds itself declared lost, ends its procs, and ends.
        wait_until("the end of the host that came back", lambda: not alive(pids[0]) and not alive(frozen))


def test_a_host_that_stops_for_a_moment_is_suspect_and_not_lost(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([1])
        frozen = hosts_of(directory)[1].agent
        os.kill(frozen, signal.SIGSTOP)
        wait_until("suspicion", lambda: states(directory) == ["alive", "suspect"])
        os.kill(frozen, signal.SIGCONT)
        wait_until("trust", lambda: states(directory) == ["alive", "alive"])
        assert alive(pids[0])
        assert not [message for message in client.messages if isinstance(message, HostEnded)]


def test_a_killed_controller_leaves_no_procs(directory: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.system.support.agent_client import Client\n"
        f"print(*Client(Path({str(directory)!r}), 'aaaaaaaa').spawn_ready([0, 1], 2), flush=True); time.sleep(600)"
    )
    with child(
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=os.getcwd())
    ) as controller:
        assert controller.stdout is not None
        pids = [int(word) for word in controller.stdout.readline().split()]
        assert len(pids) == 4
        controller.kill()
    wait_until("the end of the procs", lambda: not any(alive(pid) for pid in pids))
    wait_until("the end of the run", lambda: query_status(directory, 60.0)["runs"] == [])  # type: ignore[index]
    with Client(directory, "bbbbbbbb") as client:
        client.spawn_ready([0, 1])


def test_an_agent_told_to_end_ends_cleanly(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([1])
        agent = hosts_of(directory)[1].agent
        for harmless in (signal.SIGHUP, signal.SIGINT):
            os.kill(agent, harmless)
        os.kill(agent, signal.SIGTERM)
        assert client.wait(ProcEnded).cause == "signal 15 (SIGTERM)"
        client.wait(HostEnded)
        assert not alive(pids[0])


def test_a_proc_that_the_kernel_kills_for_memory_says_so(directory: Path) -> None:
    with ExitStack() as resources:
        try:
            add = resources.enter_context(memory_group(256 << 20))
        except OSError as error:
            pytest.skip(f"no memory control group (v1) of our own to be had here: {error}")
        client = resources.enter_context(Client(directory, "aaaaaaaa"))
        # The group holds the agents, which read the counter, and their zygotes; their memory from here on counts.
        for pid in cookie_holders(directory):
            if alive(pid):
                add(pid)
        client.spawn([0], 1, "data = bytearray(512 << 20)")
        ended = client.wait(ProcEnded)
        assert ended.cause == "out of memory: the kernel killed it with signal 9 (SIGKILL)"
        assert ended.kind == "oom"
        client.spawn([0], 1, "import os; os.kill(os.getpid(), 9)")
        died = client.wait_all(ProcEnded, 2)[1]
        assert (died.cause, died.kind) == ("signal 9 (SIGKILL)", "signal")


def test_a_killed_opener_leaves_nothing(tmp_path: Path, config: Config) -> None:
    where = tmp_path / "allocation"
    write_config(private_dir(tmp_path / "settings"), config)
    program = (
        "import sys, time; from pathlib import Path\n"
        "from monarch_hpc.attach.embedded import open_local; from monarch_hpc.allocation.settings import read_config\n"
        f"with open_local(2, read_config(Path({str(tmp_path / 'settings')!r})), Path({str(where)!r})):\n"
        "    print('ready', flush=True); time.sleep(600)"
    )
    with child(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=os.getcwd())) as opener:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"ready\n"
        assert len(cookie_holders(where)) >= 2
        opener.kill()
    wait_until("the end of the agents and their files", lambda: not where.exists() and not cookie_holders(where))


@contextmanager
def agent(where: Path, rank: int, num_hosts: int, key: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Start one agent by its command line; end it with the context."""
    words = ["--directory", str(where), "--allocation", "ab" * 16, "--rank", str(rank), "--num-hosts", str(num_hosts)]
    process = subprocess.Popen(
        [sys.executable, "-m", "monarch_hpc.agent", *words, "--local"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=os.getcwd(),
    )
    assert process.stdin is not None
    process.stdin.write(key)
    process.stdin.close()
    process.stdin = None
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def where(tmp_path: Path, config: Config) -> Path:
    """An allocation's directory before its agents start; their deadline is one second."""
    directory = private_dir(tmp_path / "allocation")
    give(directory, config, 1.0)
    write_private(directory / "key", b"k" * 32)
    return directory


def give(directory: Path, config: Config, bootstrap_s: float) -> None:
    """Give that time to the agents that start from now on."""
    write_config(directory, replace(config, slurm=replace(config.slurm, bootstrap_s=bootstrap_s)))


def test_a_host_that_does_not_come_is_named(where: Path, config: Config) -> None:
    with ExitStack() as cleanup:
        give(where, config, 120.0)
        cleanup.enter_context(agent(where, 2, 3, b"k" * 32))
        wait_until("the other host", lambda: list(where.glob("hosts/*.json")))
        give(where, config, 3.0)
        cleanup.enter_context(agent(where, 0, 3, b"k" * 32))
        wait_until("the head", lambda: read_head(where))
        give(where, config, 120.0)
        # Those that join after the deadline, as on a busy machine, are added.
        ready = wait_until("the two hosts", lambda: read_ready(where), accept=lambda it: it and len(it.names) == 2)
        assert ready is not None
        assert (ready.missing, ready.names) == (("local1",), {0: "local0", 2: "local2"})
        # A late host still joins.
        cleanup.enter_context(agent(where, 1, 3, b"k" * 32))
        wait_until("the late host", lambda: read_ready(where).missing == ())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "rank", "words"),
    [
        (b"short", 0, b"5 bytes of the allocation's 32-byte key came"),
        (b"", 0, b"0 bytes of the allocation's 32-byte key came"),
        (b"k" * 32, 1, b"no head after 1 s"),
    ],
)
def test_an_agent_that_cannot_begin_says_why(where: Path, key: bytes, rank: int, words: bytes) -> None:
    with agent(where, rank, 2, key) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert words in err
    assert err.startswith(b"agent local%d: " % rank)


def test_a_second_agent_of_the_heads_host_is_refused(where: Path) -> None:
    with agent(where, 0, 1, b"k" * 32) as head:
        wait_until("ready.json", lambda: read_ready(where))
        with agent(where, 0, 1, b"k" * 32) as second:
            _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert b"host 0 has an agent already: process %d on local0" % head.pid in err
        assert query_status(where, 60.0) is not None


def test_an_agent_with_another_key_is_not_seated(where: Path, config: Config) -> None:
    with agent(where, 0, 2, b"k" * 32):
        wait_until("the head", lambda: read_head(where))
        give(where, config, 120.0)
        with agent(where, 1, 2, b"x" * 32) as stranger:
            _, err = stranger.communicate(timeout=60)
        assert stranger.returncode == 1
        assert b"cannot reach the head" in err
        ready = wait_until("the head's own host", lambda: read_ready(where), accept=lambda it: it and it.names)
        assert ready is not None and ready.missing == ("local1",)


class _Nobody:
    def on_channel(self, channel: object) -> None: ...

    def on_frame(self, channel: object, frame: object) -> None: ...

    def on_lost(self, channel: object, error: object) -> None: ...


@pytest.mark.parametrize(
    ("field", "value", "error", "words"),
    [
        ("python", "3.9.1", VersionMismatch, "Python differs: "),
        ("package", "0.0.0", VersionMismatch, "monarch_hpc differs: "),
        ("protocol", 99, VersionMismatch, "the protocol differs: 1 here, 99 on local0 there"),
        (None, None, AllocationError, "its Slurm job has ended"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_dialled(
    shared: Path, field: str | None, value: object, error: type[Exception], words: str
) -> None:
    document = read_json(shared / "ready.json")
    assert isinstance(document, dict)
    if field is None:
        write_json(shared / "ended.json", {})
    else:
        write_json(shared / "ready.json", {**document, field: value})
    engine = Engine()
    with pytest.raises(error, match=words):
        attach(shared, Role.TOOL, _Nobody(), engine)
    engine.close()
    write_json(shared / "ready.json", document)
    (shared / "ended.json").unlink(missing_ok=True)


def test_another_key_is_refused(shared: Path) -> None:
    key = (shared / "key").read_bytes()
    write_private(shared / "key", b"x" * 32)
    engine = Engine()
    engine.start()
    with pytest.raises(AuthenticationError):
        attach(shared, Role.TOOL, _Nobody(), engine)
    engine.close()
    write_private(shared / "key", key)
    assert query_status(shared, 60.0) is not None
