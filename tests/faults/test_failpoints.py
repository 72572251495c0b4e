"""Agents, heads and programs that die between two steps of keeping a mesh, and of taking a run over."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import FAILPOINTS_VARIABLE, alive
from tests.system.cli.test_kept_meshes import KEEP, USE, WORKER
from tests.system.support.first_host import allocation, call, finish, line, runs, script, start
from tests.system.support.takeovers import kill_program

# Agents seek an heir at once; a minority, and requests that need all agents' reports, wait for these.
TIMES = {"liveness__fence_s": 5.0, "liveness__suspect_s": 3.0, "liveness__dead_s": 6.0, "heal__tries": 0}

KEPT = f"{KEEP}procs.keep('kept')\nprint(*pids)\n"
BEHIND_THE_HEAD = KEPT.replace("hosts()", "hosts().slice(hosts=slice(1, 4))")
"""On the three hosts that outlive the first head."""


@pytest.fixture
def rule() -> str:
    """What is armed in all agents."""
    return ""


@pytest.fixture
def home(tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an allocation of four hosts, registered under the name ``dev``."""
    monkeypatch.setenv(FAILPOINTS_VARIABLE, rule)
    (tmp_path / "weights.py").write_text(WORKER)
    with allocation(tmp_path, 4, **TIMES):
        monkeypatch.delenv(FAILPOINTS_VARIABLE)
        yield tmp_path


def listed(home: Path) -> list[dict[str, object]]:
    code, out, err = call(home, "mesh", "list", "-a", "dev", "--json")
    assert code == 0, err
    found: list[dict[str, object]] = json.loads(out)["meshes"]
    return found


def use(home: Path, text: str) -> str:
    code, out, err = call(home, "run", "-a", "dev", script(home, USE.replace("NAME", "kept") + text))
    assert code == 0, err
    return out


@pytest.mark.parametrize("rule", ["head.keep@0=kill", "head.kept@0=kill"])
def test_a_head_that_dies_while_it_keeps_a_mesh_leaves_that_to_its_heir(home: Path) -> None:
    code, out, err = call(home, "run", "-a", "dev", script(home, BEHIND_THE_HEAD))
    assert code == 0, err
    pids = [int(pid) for pid in out.split()]
    assert [(mesh["name"], mesh["alive"]) for mesh in listed(home)] == [("kept", 3)]
    assert use(home, "print([pid for _, pid in weights.pid.call().get()])\n") == f"{pids}\n"
    assert call(home, "mesh", "stop", "kept", "-a", "dev")[0] == 0
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("rule", ["agent.keep@2=kill"])
def test_an_agent_that_dies_while_it_keeps_procs_takes_them_along(home: Path) -> None:
    text = KEPT.replace(
        "import monarch_hpc", "import monarch_hpc.actor\nmonarch_hpc.actor.unhandled_fault_hook = print"
    )
    code, _, err = call(home, "run", "-a", "dev", script(home, text))
    assert code == 0, err
    assert [(mesh["name"], mesh["procs"], mesh["alive"]) for mesh in listed(home)] == [("kept", 4, 3)]
    reads = """
for host in range(4):
    try:
        print(weights.slice(hosts=host, p=0).add.call_one(1).get())
    except monarch_hpc.ActorDied as error:
        print(type(error).__name__)
"""
    assert use(home, reads).split() == ["8", "8", "ProcDied", "8"]


@pytest.mark.parametrize("rule", ["agent.spawn@1=raise,agent.close@1=raise"])
def test_an_agent_that_fails_on_an_order_says_so_and_works_on(home: Path) -> None:
    code, _, err = call(home, "run", "-a", "dev", script(home, KEPT))
    assert code != 0 and "its agent failed: RuntimeError: failpoint agent.spawn" in err
    code, out, err = call(home, "run", "-a", "dev", script(home, KEPT))
    assert code == 0, err
    assert len(out.split()) == 4


def test_a_program_that_dies_before_the_head_is_asked_keeps_nothing(home: Path) -> None:
    text = script(home, KEPT.replace("procs.keep", "print(*pids, flush=True)\nprocs.keep"))
    program = start(home, "run", "-a", "dev", text, MONARCH_HPC_FAILPOINTS="program.keep=kill")
    pids = [int(pid) for pid in line(program).split()]
    assert finish(program)[0] == 128 + signal.SIGKILL
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)
    assert listed(home) == []
    assert call(home, "run", "-a", "dev", script(home, KEPT))[0] == 0  # the name is free


def test_a_successor_that_dies_before_it_has_adopted_the_procs_leaves_them_to_the_next(home: Path) -> None:
    text = f"{KEEP}import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
    first = start(home, "run", "-a", "dev", "--on-loss", "hold", script(home, text))
    assert line(first) == "ready\n"
    (run,) = runs(home)
    kill_program(first)
    finish(first)
    takes = "import monarch_hpc\nprint(monarch_hpc.takeover().meshes['weights'].add.call(1).get().values())\n"
    words = ("attach", run, "-a", "dev", "--takeover", "--on-loss", "hold", "--", script(home, takes))
    dying = start(home, *words, MONARCH_HPC_FAILPOINTS="program.takeover=kill")
    assert finish(dying)[0] == 128 + signal.SIGKILL
    code, out, err = call(home, *words)
    assert (code, out) == (0, "[8, 8, 8, 8]\n"), err
    wait_until("the end of the run", lambda: runs(home), accept=lambda left: not left)


@pytest.mark.parametrize("rule", ["head.takeover@0=kill"])
def test_a_head_that_dies_in_a_takeover_ends_the_run_and_no_other(home: Path) -> None:
    text = f"{KEEP}import time\nprint('ready', *pids, flush=True)\ntime.sleep(600)\n"
    first = start(home, "run", "-a", "dev", "--on-loss", "hold", script(home, text))
    pids = [int(pid) for pid in line(first).split()[1:]]
    (run,) = runs(home)
    kill_program(first)
    finish(first)
    takes = script(home, "import monarch_hpc\nprint(sorted(monarch_hpc.takeover().meshes))\n")
    call(home, "attach", run, "-a", "dev", "--takeover", "--", takes)
    wait_until("their end", lambda: [pid for pid in pids if alive(pid)], 120.0, accept=lambda left: not left)
    code, _, err = call(home, "run", "-a", "dev", script(home, BEHIND_THE_HEAD))
    assert code == 0, err
