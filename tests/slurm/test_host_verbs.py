"""Verbs about the hosts of an allocation: commands, terminals."""

from __future__ import annotations

import json
import signal

from monarch_hpc.testing import wait_until
from tests.slurm.commands import HOSTS, Alice, alice, argv, held, procs_left, until_printed

__all__ = ["alice", "held"]


def test_a_command_runs_on_all_hosts_or_on_the_named_ones(held: Alice) -> None:
    done = held.run("exec", "--", "sh", "-c", "echo on $(hostname) at $MONARCH_RANK_hosts; exit $MONARCH_RANK_hosts")
    assert done.returncode == 3, done.stderr  # the largest
    lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert lines == [f"on {host} at {rank}" for rank, host in enumerate(HOSTS)]
    done = held.run("exec", "-a", "dev", "--host", "n[2,4]", "--json", "--", "hostname")
    assert json.loads(done.stdout) == {
        "schema": 1, "command": ["hostname"], "hosts": ["n2", "n4"], "per_host": 1, "exit_code": 0
    }  # fmt: skip
    assert sorted(line.partition("] ")[2] for line in done.stderr.splitlines()) == ["n2", "n4"]
    done = held.run("exec", "--rank", "2", "--per-node", "2", "--", "sh", "-c", "printf '%s\\n' \"$0\"", "a  $(b) 'c'")
    assert "] a  $(b) 'c'" in done.stdout, done.stdout
    done = held.run("exec", "--host", "n9", "--json", "--", "true")
    assert done.returncode == 72
    assert "has no usable host 'n9' (hosts: n1, n2, n3, n4)" in json.loads(done.stdout)["error"]["message"]


def test_ctrl_c_ends_the_commands_and_not_the_allocation(held: Alice) -> None:
    process = held.start("exec", "--", "sh", "-c", "echo begun; exec sleep 600")
    until_printed(process, "begun")
    process.signal_group(signal.SIGINT)
    _, rest = process.communicate(timeout=180)
    assert process.returncode == 130, rest
    wait_until("no proc", lambda: procs_left(held), 120.0, accept=lambda left: not left)
    assert held.status("dev")[0]["state"] == "ready"


def test_a_shell_on_a_host_has_its_exit_code(held: Alice) -> None:
    text = "echo I am on $(hostname)\nexit 7\n"
    done = held.lab.run(argv("shell", "n3"), env=held.environment({}), stdin=text, timeout_s=60)
    assert done.returncode == 7, done.stderr
    assert "I am on n3" in done.stdout
