"""Meshes that stay when their run ends: kept by one program, used by others, and stopped by a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.agent_client import alive
from tests.system.support.first_host import allocation, call, finish, line, runs, script, start
from tests.system.support.takeovers import kill_program

PER_HOST = 9
"""So many that messages for all procs go through the agents."""

WORKER = """
import os, time
import monarch_hpc

class Weights(monarch_hpc.Actor):
    def __init__(self, value):
        self.value = value

    @monarch_hpc.endpoint
    def add(self, amount):
        self.value += amount
        return self.value

    @monarch_hpc.endpoint
    def pid(self):
        return os.getpid()

    @monarch_hpc.endpoint
    def wait_for(self, path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return self.value

    @monarch_hpc.endpoint
    def num_programs(self):
        from monarch_hpc.actor.runtime.runtime import Runtime
        from monarch_hpc.core.ids import Role
        return sum(channel.peer.role is Role.CONTROLLER for channel in Runtime.current.node.channels.values())

    @monarch_hpc.endpoint
    def say(self, words):
        print(words, flush=True)

    @monarch_hpc.endpoint
    def leave_child(self):
        import subprocess
        return subprocess.Popen(["sleep", "1000"]).pid
"""

KEEP = """
import monarch_hpc
from weights import Weights
procs = monarch_hpc.hosts().spawn_procs(per_host={"p": 1}, name="procs")
weights = procs.spawn("weights", Weights, 7)
pids = [pid for _, pid in weights.pid.call().get()]
"""

USE = """
import monarch_hpc, os
kept = monarch_hpc.kept("NAME")
weights = kept["weights"]
"""


@pytest.fixture(autouse=True)
def _module(home: Path) -> None:
    (home / "weights.py").write_text(WORKER)


def keep(home: Path, name: str, *words: str, more: str = "") -> list[int]:
    """Run a program that keeps its procs under a name; return their process ids."""
    text = f"{KEEP}{more}procs.keep({name!r})\nprint(*pids)\n"
    code, out, err = call(home, "run", "-a", "dev", *words, script(home, text))
    assert (code, err) == (0, ""), err
    return [int(pid) for pid in out.split()]


def use(home: Path, name: str, text: str) -> str:
    """What a program prints that uses a kept mesh."""
    code, out, err = call(home, "run", "-a", "dev", script(home, USE.replace("NAME", name) + text))
    assert code == 0, err
    return out


def listed(home: Path) -> list[dict[str, object]]:
    code, out, err = call(home, "mesh", "list", "-a", "dev", "--json")
    assert code == 0, err
    meshes = json.loads(out)["meshes"]
    assert isinstance(meshes, list)
    return meshes


def stop(home: Path, name: str, pids: list[int]) -> None:
    code, out, err = call(home, "mesh", "stop", name, "-a", "dev")
    assert code == 0 and f"{name}: stopped" in out, err
    assert not [pid for pid in pids if alive(pid)]


def test_the_actors_of_one_run_serve_the_next_ones(home: Path) -> None:
    pids = keep(home, "first", more="procs.spawn('other', Weights, 1)\nchild = weights.leave_child.call().get()\n")
    assert runs(home) == {}, "the run is over"
    (mesh,) = listed(home)
    assert {key: mesh[key] for key in ("name", "procs", "alive", "programs")} == {
        "name": "first",
        "procs": 2,
        "alive": 2,
        "programs": 0,
    }
    reads = "print(weights.add.call(1).get().values(), sorted(kept.meshes), kept.problems, kept.procs.extent)\n"
    assert use(home, "first", reads) == "[8, 8] ['other', 'weights'] {} {hosts: 2, p: 1}\n"
    more = "print([pid for _, pid in weights.pid.call().get()], weights.slice(hosts=1, p=0).add.call_one(2).get())\n"
    assert use(home, "first", more) == f"{pids} 10\n"
    code, out, err = call(home, "mesh", "show", "first", "-a", "dev")
    assert code == 0 and "2 of 2 procs live" in err, err
    assert [words.split()[3:] for words in out.splitlines()[1:]] == [["ready", "other", "weights"]] * 2
    stop(home, "first", pids)
    assert listed(home) == []
    code, _, err = call(home, "run", "-a", "dev", script(home, USE.replace("NAME", "first")))
    assert code != 0 and "no kept mesh has the name 'first'; there are: none" in err


def test_what_a_kept_proc_has_started_lives_as_long_as_its_mesh(home: Path) -> None:
    text = "print(*(pid for _, pid in weights.leave_child.call().get()))\n"
    first = f"{KEEP}{text}procs.keep('child')\nprint(*pids)\nmonarch_hpc.hosts().spawn_procs(name='ends')\n"
    code, out, err = call(home, "run", "-a", "dev", script(home, first))
    assert (code, err) == (0, ""), err
    children, pids = ([int(pid) for pid in one.split()] for one in out.splitlines())
    assert all(alive(pid) for pid in [*children, *pids])
    stop(home, "child", pids)
    wait_until("the end of the children", lambda: [pid for pid in children if alive(pid)], accept=lambda left: not left)


def test_two_programs_use_a_mesh_at_once_and_neither_ends_it(home: Path) -> None:
    pids = keep(home, "both")
    stay = script(
        home, f"{USE.replace('NAME', 'both')}weights.add.call(1).get()\nprint('ready', flush=True)\ninput()\n"
    )
    first, second = (start(home, "run", "-a", "dev", stay, stdin=subprocess.PIPE) for _ in range(2))
    assert line(first) == line(second) == "ready\n"
    assert [mesh["programs"] for mesh in listed(home)] == [2]
    kill_program(first)
    finish(first)
    again = "import time\nprint(weights.add.call(1).get().values())\n"
    assert use(home, "both", again) == "[10, 10]\n"
    code, _, err = finish(second, b"\n")
    assert (code, err) == (0, "")
    wait_until("their end", lambda: listed(home)[0]["programs"], accept=lambda left: left == 0)
    assert all(alive(pid) for pid in pids)
    stop(home, "both", pids)


def test_a_killed_owner_leaves_what_it_has_kept(home: Path) -> None:
    text = f"{KEEP}procs.keep('killed')\nmonarch_hpc.hosts().spawn_procs(name='ends').initialized.get()\n"
    owner = start(home, "run", "-a", "dev", script(home, f"{text}print('ready', *pids, flush=True)\ninput()\n"))
    words = line(owner).split()
    assert words[0] == "ready", finish(owner)
    kill_program(owner)
    assert finish(owner)[0] == 137
    wait_until("the end of the run", lambda: runs(home), accept=lambda left: not left)
    pids = [int(pid) for pid in words[1:]]
    assert use(home, "killed", "print([pid for _, pid in weights.pid.call().get()])\n") == f"{pids}\n"
    stop(home, "killed", pids)


def test_the_death_of_a_kept_proc_is_told_when_it_is_opened_and_while_it_is_used(home: Path) -> None:
    first, second = keep(home, "dying")
    os.kill(second, signal.SIGKILL)
    wait_until("its end", lambda: listed(home)[0]["alive"], accept=lambda num: num == 1)
    reads = """
one, two = (weights.slice(hosts=host, p=0) for host in (0, 1))
print(one.add.call_one(1).get())
try:
    two.add.call_one(1).get()
except monarch_hpc.SupervisionError as error:
    print(type(error).__name__, "SIGKILL" in str(error))
try:
    weights.add.call(1).get()
except monarch_hpc.MeshDied as error:
    print(type(error).__name__)
import signal
os.kill(one.pid.call_one().get(), signal.SIGKILL)
try:
    one.wait_for.call_one("/nowhere").get()
except monarch_hpc.SupervisionError as error:
    print(type(error).__name__, "SIGKILL" in str(error))
"""
    assert use(home, "dying", reads) == "8\nProcDied True\nMeshDied\nProcDied True\n"
    assert not alive(first)
    code, _, err = call(home, "run", "-a", "dev", script(home, USE.replace("NAME", "dying")))
    assert code != 0 and "all 2 procs of the kept mesh dying are dead" in err and "mesh stop dying" in err
    stop(home, "dying", [])
    assert listed(home) == []


def test_a_mesh_is_stopped_while_it_is_used_and_its_calls_say_so(home: Path) -> None:
    pids = keep(home, "used")
    text = """
call = weights.wait_for.call("/nowhere")
print("ready", flush=True)
try:
    call.get()
except monarch_hpc.SupervisionError as error:
    print(type(error).__name__, "stopped" in str(error))
try:
    weights.add.call(1).get()
except monarch_hpc.SupervisionError as error:
    print(type(error).__name__, "stopped" in str(error))
"""
    user = start(home, "run", "-a", "dev", script(home, USE.replace("NAME", "used") + text))
    assert line(user) == "ready\n"
    stop(home, "used", pids)
    code, out, err = finish(user)
    assert (code, out) == (0, "MeshDied True\nMeshDied True\n"), err


@pytest.mark.parametrize("per_host", [1, PER_HOST], ids=["calls", "casts"])
@pytest.mark.parametrize("end", ["killed", "in order"])
def test_what_a_gone_program_has_asked_and_has_not_begun_is_dropped(home: Path, per_host: int, end: str) -> None:
    """What runs goes on to its end; broadcasts are dropped only with a program that did not end in order."""
    name, go = f"orphans{per_host}{end[0]}", home / f"go{per_host}{end[0]}"
    text = KEEP.replace('"p": 1', f'"p": {per_host}')
    more = f"procs.spawn('other', Weights, 1).add.call(0).get()\nprocs.keep({name!r})\nprint(*pids)\n"
    code, out, err = call(home, "run", "-a", "dev", script(home, text + more))
    assert (code, err) == (0, ""), err
    pids = [int(pid) for pid in out.split()]
    queue = f"""
first = weights.wait_for.call({str(go)!r})
for _ in range(20):
    weights.add.call(1)
    weights.slice(hosts=0, p=0).add.call_one(1)
    weights.add.broadcast(100)
kept["other"].add.call(0).get()
print("queued", flush=True)
input()
"""
    user = start(home, "run", "-a", "dev", script(home, USE.replace("NAME", name) + queue), stdin=subprocess.PIPE)
    assert line(user) == "queued\n"
    if end == "killed":
        kill_program(user)
    finish(user, b"\n")
    reads = f"""
from monarch_hpc.testing import wait_until
alone = lambda: set(kept["other"].num_programs.call().get().values()) == {{1}}
wait_until("the procs know", alone, 120.0)
open({str(go)!r}, "w").close()
print(set(weights.add.call(1).get().values()))
"""
    assert use(home, name, reads) == ("{8}\n" if end == "killed" else "{2008}\n")
    stop(home, name, pids)


def test_names_are_used_once_and_a_program_cannot_end_what_it_has_kept_by_accident(home: Path) -> None:
    pids = keep(home, "once")
    text = f"""
{KEEP}
for name in ("once", "a b", "x" * 65):
    try:
        procs.keep(name)
    except monarch_hpc.AllocationError as error:
        print(error)
slice = procs.slice(hosts=0)
try:
    slice.keep("slice")
except RuntimeError as error:
    print("only the caller" in str(error))
with procs:
    procs.keep("twice")
print([pid for _, pid in weights.pid.call().get()] == pids)
for act in (procs.stop, lambda: procs.keep("more"), procs.heal):
    try:
        act()
    except RuntimeError as error:
        print("kept" in str(error))
again = monarch_hpc.kept("twice")
print(again["weights"].add.call(1).get().values())
try:
    again["nothing"]
except KeyError as error:
    print("has weights" in str(error))
policy = monarch_hpc.hosts().spawn_procs(restart=monarch_hpc.Restart("always"))
try:
    policy.keep("policy")
except ValueError as error:
    print("restart policy" in str(error))
again.stop().get()
"""
    code, out, err = call(home, "run", "-a", "dev", script(home, text))
    assert code == 0, err
    taken, *invalid = out.splitlines()[:3]
    assert "has the name once already" in taken
    assert all("is no name of a kept mesh" in refused for refused in invalid)
    assert out.splitlines()[3:] == ["True", "True", "True", "True", "True", "[8, 8]", "True", "True"]
    stop(home, "once", pids)


@pytest.mark.parametrize("place", ["here", "host0"])
def test_a_program_keeps_all_of_its_named_meshes(home: Path, place: str) -> None:
    text = f"{KEEP}unnamed = monarch_hpc.hosts().spawn_procs()\nunnamed.initialized.get()\nprint(*pids)\n"
    words = ["--keep", "--on", place, script(home, f"{text}raise SystemExit(3)\n")]
    code, out, err = call(home, "run", "-a", "dev", *words)
    assert code == 3, err
    pids = [int(pid) for pid in out.split()]
    assert [(mesh["name"], mesh["alive"]) for mesh in listed(home)] == [("procs", 2)]
    assert use(home, "procs", "print([pid for _, pid in weights.pid.call().get()])\n") == f"{pids}\n"
    # The next one finds the name taken: its own procs end, and it says so.
    code, _, err = call(home, "run", "-a", "dev", *words)
    assert code == 3 and "procs is not kept" in err and "has the name procs already" in err
    assert all(alive(pid) for pid in pids)
    stop(home, "procs", pids)
    code, _, err = call(home, "run", "--local", "1", "--keep", "x.py")
    assert code == 64 and "nowhere to keep" in err


def test_a_held_run_keeps_meshes_too_and_many_procs_get_casts(home: Path) -> None:
    text = KEEP.replace('"p": 1', f'"p": {PER_HOST}')
    first = script(home, f"{text}procs.keep('many')\nprint(*pids)\n")
    code, out, err = call(home, "run", "-a", "dev", "--on-loss", "hold", first)
    assert (code, err) == (0, ""), err
    pids = [int(pid) for pid in out.split()]
    assert load().config.transport.cast_direct < len(pids)
    reads = """
from weights import Weights
print({weights.add.call(1).get().item(hosts=1, p=0), *weights.slice(hosts=0).add.call(0).get().values()})
more = kept.procs.spawn("more", Weights, 1)
print(set(more.add.call(1).get().values()))
"""
    assert use(home, "many", reads) == "{8}\n{2}\n"
    assert use(home, "many", "print(sorted(kept.meshes), set(kept['more'].add.call(1).get().values()))\n") == (
        "['more', 'weights'] {3}\n"
    )
    stop(home, "many", pids)


def test_the_output_of_kept_procs_stays_while_they_live(tmp_path: Path) -> None:
    (tmp_path / "weights.py").write_text(WORKER)
    with allocation(tmp_path, logs__keep_runs=1):
        pids = keep(tmp_path, "writing")
        (mesh,) = listed(tmp_path)
        for _ in range(3):
            assert (
                call(tmp_path, "run", "-a", "dev", script(tmp_path, "import monarch_hpc\nmonarch_hpc.hosts()\n"))[0]
                == 0
            )
        use(tmp_path, "writing", "weights.say.call('still here').get()\n")
        code, out, err = call(tmp_path, "logs", "dev", "--run", str(mesh["run"]))
        assert code == 0 and out.count("still here") == 2, (out, err)
        stop(tmp_path, "writing", pids)
