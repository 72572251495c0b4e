"""A user comes back on another login host: her allocations and runs are there, as the homes are shared."""

from __future__ import annotations

import json
import subprocess

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import (
    FOUR,
    Alice,
    alice,
    argv,
    held_alone,
    release,
    until_printed,
    wait_until_left,
    write,
)

__all__ = ["alice", "held_alone"]

OTHER = "login2"
HELLO = str(ROOT / "examples" / "hello_mesh.py")
LINES = "import os, time\nprint('armed', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('over')\n"


def there(alice: Alice, *arguments: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
    """Run one of our commands on the other login host."""
    return alice.lab.run(argv(*arguments), host=OTHER, env=alice.environment({}), timeout_s=timeout_s)


def test_an_allocation_of_one_login_host_is_used_and_given_back_on_the_other(held_alone: Alice) -> None:
    alice = held_alone
    done = there(alice, "run", "-a", "dev", HELLO)
    assert done.returncode == 0, done.stderr
    assert "{'hosts': 3/4, 'gpus': 1/2} hello, world, from n4" in done.stdout
    (shown,) = json.loads(there(alice, "status", "--json").stdout)["allocations"]
    assert (shown["name"], shown["state"]) == ("dev", "ready")
    assert there(alice, "alloc", "dev", "-N", "1").returncode == 72, "its name is taken there, too"
    done = there(alice, "release", "dev")
    assert done.returncode == 0 and "no process left on 4 host(s)" in done.stdout, done.stderr
    assert alice.status() == [] and alice.jobs() == {}
    wait_until_left(alice)


def test_a_run_goes_on_without_its_login_host_and_is_shown_on_the_other(held_alone: Alice) -> None:
    """The second login host, since the first one has slurmctld here."""
    alice = held_alone
    command = argv("run", "-a", "dev", "--on", "host0", write(alice, "lines.py", LINES))
    client = alice.lab.popen(command, host=OTHER, env=alice.environment({}), folder=alice.folder)
    until_printed(client, "armed")
    alice.lab.kill_host(OTHER)
    client.communicate(timeout=180)
    (shown,) = alice.status("dev")
    assert isinstance(shown["runs"], list)
    (run,) = (one["run"] for one in shown["runs"])
    alice.lab.run(["touch", str(alice.folder / "go")], check=True)
    done = alice.run("attach", "--all", run)
    assert (done.returncode, done.stdout) == (0, "armed\nover\n"), done.stderr
    wait_until("the end of the run", lambda: alice.status("dev")[0]["runs"], accept=lambda runs: not runs)
    alice.lab.boot_host(OTHER)


def test_an_alloc_whose_login_host_died_is_found_on_the_other(alice: Alice) -> None:
    alice.fill()
    waiting = alice.lab.popen(argv("alloc", "dev", *FOUR), host=OTHER, env=alice.environment({}))
    wait_until("its job", alice.jobs, accept=lambda jobs: len(jobs) == 2)
    wait_until("its record", alice.status, accept=lambda found: found and found[0]["job_id"])
    alice.lab.kill_host(OTHER)
    waiting.communicate(timeout=180)
    alice.free()
    (shown,) = wait_until(
        "its agents", lambda: alice.status("dev"), 180.0, accept=lambda found: found[0]["state"] == "ready"
    )
    assert shown["job_name"] in alice.jobs()
    release(alice)


def test_commands_of_both_at_once_leave_one_right_registry(alice: Alice) -> None:
    alice.fill()  # the name of a job that began, and ended at once, would be free again
    hosts = [*alice.lab.logins] * 6
    begun = [
        alice.lab.popen(
            argv("alloc", f"k{number % 4}", "-N", "1", "-t", "5", "--bg"), host=host, env=alice.environment({})
        )
        for number, host in enumerate(hosts)
    ]
    said = [process.communicate(timeout=180) for process in begun]
    codes = sorted(process.returncode for process in begun)
    # Each name is taken once; the others of that name are refused, and nothing is half done.
    assert codes == [0] * 4 + [72] * (len(hosts) - 4), said
    assert sorted(str(one["name"]) for one in alice.status()) == ["k0", "k1", "k2", "k3"]
    assert len(alice.jobs()) == 4 + 1
    assert there(alice, "release", "--all").returncode == 0
    assert list(alice.jobs()) == ["filler"] and alice.status() == []
    alice.free()
    wait_until_left(alice)
