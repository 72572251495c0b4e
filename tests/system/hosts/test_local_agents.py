"""`monarch_hpc.attach.local_agents`: agents that start before they are needed end if they are not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.allocation.ready import read_ready
from monarch_hpc.attach import local_agents
from monarch_hpc.attach.local_agents import LocalAgents, expect_embedded, take_expected
from monarch_hpc.config.load import load
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.storage.scratch import make_scratch
from monarch_hpc.testing import wait_until

_PATIENCE_S = 60.0


def _pids(agents: LocalAgents) -> list[int]:
    """The processes of agents, and their zygotes."""
    name = str(agents.directory).encode()
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:  # it has just ended
            continue
    return found


@pytest.fixture(autouse=True)
def _no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MONARCH_HPC_DIRECTORY", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)


def test_agents_that_nobody_takes_end() -> None:
    with expect_embedded():
        (agents,) = local_agents._expected
        wait_until("agent and zygote run", lambda: len(_pids(agents)) == 2, _PATIENCE_S)
    assert not agents.directory.exists()
    wait_until("the end of both", lambda: _pids(agents), _PATIENCE_S, accept=lambda left: not left)
    assert take_expected() is None


def test_one_agent_is_expected_at_a_time() -> None:
    with expect_embedded():
        taken = take_expected()
        assert taken is not None
        with expect_embedded():
            assert take_expected() is None
    assert taken.directory.exists()
    taken.close()


@pytest.mark.parametrize("variable", ["MONARCH_HPC_DIRECTORY", "SLURM_JOB_ID"])
def test_none_is_expected_where_others_give_hosts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    with expect_embedded():
        assert take_expected() is None


def test_a_program_that_is_killed_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from monarch_hpc.attach.local_agents import expect_embedded\n"
        "with expect_embedded():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("XDG_RUNTIME_DIR", None)
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=_PATIENCE_S, check=False)
    wait_until("the agent's folder is gone", lambda: not list(tmp_path.iterdir()), _PATIENCE_S)


def test_agents_get_ready_while_their_program_works_and_nothing_waits_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fsync")
    with contextlib.closing(LocalAgents(1, tmp_path / "local")) as agents:
        agents.open(
            load().config, lambda: wait_until("an agent is ready", lambda: read_ready(agents.directory), _PATIENCE_S)
        )


def test_an_agent_that_is_being_started_again_ends_with_the_others(tmp_path: Path) -> None:
    """It is a child of the head, and might make the folder anew that has just been removed."""
    config = load().config
    agents = LocalAgents(2, tmp_path / "local")
    try:
        agents.open(replace(config, heal=replace(config.heal, backoff_s=0.1)))
        agents._processes["local1"].kill()
        again = wait_until("another agent of that host", lambda: _again(agents), _PATIENCE_S)
        assert _holds(again, agents.directory), "it is removed while an agent uses it, if the program is killed"
    finally:
        agents.close()
    assert not _pids(agents) and not agents.directory.exists()


def _again(agents: LocalAgents) -> int:
    """The agent that the head has started, after its exec; 0 if there is none."""
    for pid in _pids(agents):
        try:
            if b"--again" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:  # it has just ended
            continue
    return 0


def _holds(pid: int, directory: Path) -> bool:
    return any(link.resolve().parent == directory for link in Path(f"/proc/{pid}/fd").iterdir())


def test_an_agent_that_does_not_start_waits_for_no_zygote(tmp_path: Path) -> None:
    """Its zygote has inherited the hold of the folder, and may not have run yet."""
    program = (
        "import os, signal, sys\n"
        "os.setsid = lambda: (signal.alarm(240), signal.pause())\n"
        "from monarch_hpc.agent.process import main\n"
        "sys.exit(main(sys.argv[1:], dict(os.environ)))\n"
    )
    folder, held = make_scratch(tmp_path)
    words = f"--directory {folder} --allocation {new_allocation_id()} --rank 0 --num-hosts 1 --local --held {held}"
    agent = subprocess.Popen(
        [sys.executable, "-c", program, *words.split()],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[held],
    )
    os.close(held)
    _, errors = agent.communicate(timeout=_PATIENCE_S)
    assert b"0 bytes of the allocation's" in errors
    assert not folder.exists()


def test_a_wrong_configuration_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MONARCH_HPC_PROCS__STOP_S": "soon"}
    environment.pop("XDG_RUNTIME_DIR", None)
    program = "import monarch_hpc; monarch_hpc.hosts()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "procs.stop_s" in done.stderr
    assert list(tmp_path.iterdir()) == []
