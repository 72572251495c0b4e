"""Bad hosts: out of use in an allocation, excluded from the next one, examined, used again."""

from __future__ import annotations

import json

from tests.slurm.commands import Alice, alice, release

__all__ = ["alice"]


def hosts_of(alice: Alice) -> list[str]:
    done = alice.run("exec", "--", "hostname")
    assert done.returncode == 0, done.stderr
    return sorted(line.partition("] ")[2] for line in done.stdout.splitlines())


def test_a_bad_host_is_drained_excluded_checked_and_used_again(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "3", "-w", "n[1-3]").returncode == 0
    assert hosts_of(alice) == ["n1", "n2", "n3"]
    done = alice.run("node", "drain", "n2", "--reason", 'bad  "$(GPU)"', "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"schema": 1, "drained": ["n2"], "allocations": {"n2": ["dev"]}}
    assert hosts_of(alice) == ["n1", "n3"]
    (_, listed, _) = json.loads(alice.run("node", "list", "--json").stdout)["hosts"]
    assert (listed["host"], listed["state"], listed["excluded"]["reason"]) == ("n2", "drained", 'bad  "$(GPU)"')
    shown = alice.run("node", "show", "n2").stdout
    assert "n2: drained" in shown and "Slurm: ALLOCATED" in shown and "; excluded " in shown
    # Its agent is still there, and it can be examined.
    assert alice.status()[0]["state"] == "ready"
    checked = alice.run("node", "check", "--json")
    assert checked.returncode == 0, checked.stdout
    assert [host["host"] for host in json.loads(checked.stdout)["hosts"]] == ["n1", "n2", "n3"]
    release(alice)

    done = alice.run("alloc", "next", "-N", "3", "-x", "n1", "--bg")
    assert done.returncode == 71  # n3 and n4 are not enough
    done = alice.run("alloc", "next", "-N", "3", "--json")
    assert [host["name"] for host in json.loads(done.stdout)["allocation"]["hosts"]] == ["n1", "n3", "n4"]
    assert 'drained   n2: bad  "$(GPU)" (' in done.stderr and "ago); excluded" in done.stderr
    assert "ExcNodeList=n2" in alice.slurm("scontrol", "show", "job")
    release(alice)
    # What the user names wins; a site that forbids to exclude hosts is not asked to.
    assert "--exclude" not in alice.run("alloc", "-N", "1", "-w", "n2", "--dry-run").stdout
    forbidden = alice.run("alloc", "-N", "1", "--dry-run", env={"MONARCH_HPC_SLURM__EXCLUDE_ALLOWED": "false"})
    assert "--exclude" not in forbidden.stdout and "not excluded, since this site forbids that" in forbidden.stderr
    assert alice.run("node", "undrain", "n2").returncode == 0
    assert alice.run("node", "undrain", "n2").returncode == 72
    assert "--exclude" not in alice.run("alloc", "-N", "1", "--dry-run").stdout
