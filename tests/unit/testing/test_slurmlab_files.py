"""The text that hosts and Slurm read."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing.slurmlab.folder import LabFolder, find_root
from monarch_hpc.testing.slurmlab.namespaces import plug_in, render_init, user_argv
from monarch_hpc.testing.slurmlab.openings import Opening
from monarch_hpc.testing.slurmlab.slurmconf import Cluster, render_gres_conf, render_hosts, render_slurm_conf
from monarch_hpc.testing.slurmlab.users import Account, plan_accounts, render_group, render_passwd

CLUSTER = Cluster(num_hosts=3)


def test_hosts_have_addresses_of_their_own() -> None:
    assert render_hosts(CLUSTER).splitlines() == [
        "127.0.0.1 localhost",
        *("10.177.0.1 login", "::ffff:10.177.0.1 login"),
        *("10.177.0.2 login2", "::ffff:10.177.0.2 login2"),
        *("10.177.0.11 n1", "::ffff:10.177.0.11 n1"),
        *("10.177.0.12 n2", "::ffff:10.177.0.12 n2"),
        *("10.177.0.13 n3", "::ffff:10.177.0.13 n3"),
    ]


def test_slurm_conf_names_nodes_and_partitions() -> None:
    lines = render_slurm_conf(CLUSTER, Path("/tmp/x/lab")).splitlines()
    claims = "CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:fake:4"
    assert [line for line in lines if line.startswith("NodeName")] == [
        f"NodeName=n{number} NodeAddr=10.177.0.1{number} Weight={number} {claims}" for number in (1, 2, 3)
    ]
    partitions = [line.split()[0] for line in lines if line.startswith("PartitionName")]
    names = ("DEFAULT", "debug", "short", "low", "vip", "paid", "checked", "scavenge")
    assert partitions == [f"PartitionName={name}" for name in names]
    assert all("=" in line for line in lines if line and not line.startswith("#"))


def test_gpus_are_devices_with_numbers() -> None:
    assert "File=/lab/dev/nvidia[0-3]" in render_gres_conf(CLUSTER, Path("/lab/dev"))
    assert render_gres_conf(Cluster(num_gpus=0), Path("/lab/dev")) == "AutoDetect=off\n"


def test_users_are_added_to_the_machines_own() -> None:
    accounts = plan_accounts(Path("/lab/home"), {0, 47001})
    assert [(one.name, one.uid) for one in accounts] == [("alice", 47002), ("bob", 47003)]
    passwd = render_passwd("root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/sh\n", accounts)
    assert passwd.splitlines() == [
        "root:x:0:0:root:/root:/bin/bash",
        "alice:x:47002:47002:alice of slurmlab:/lab/home/alice:/bin/bash",
        "bob:x:47003:47003:bob of slurmlab:/lab/home/bob:/bin/bash",
    ]
    assert render_group("root:x:0:\nvip:x:7:alice\n", accounts).splitlines() == [
        "root:x:0:",
        "alice:x:47002:",
        "bob:x:47003:",
        "vip:x:47004:bob",
    ]


def test_a_hosts_script_quotes_paths_and_says_when_it_is_ready() -> None:
    openings = [Opening(Path("/root/my $(project)"), Path("/root"), False), Opening(Path("/tmp/lab"), None, True)]
    script = render_init("n1", Path("/tmp/lab"), openings).splitlines()
    assert "exec 10<'/root/my $(project)'" in script
    assert "mount -n -t tmpfs -o mode=0755 closed /root" in script
    assert "mount -n -o remount,bind,ro '/root/my $(project)'" in script
    assert "mkdir -p /tmp/lab; mount -n -c --bind /proc/self/fd/11 /tmp/lab" in script
    assert not [line for line in script if "remount" in line and "/tmp/lab" in line]
    # Opened before anything is covered, ready after all is done.
    assert script.index("exec 11</tmp/lab") < min(n for n, line in enumerate(script) if "mount" in line)
    assert script[-2] == "echo ready"


def test_a_host_is_wired_to_the_login_hosts_switch() -> None:
    on_login, on_host = plug_in("n2", CLUSTER, 123)
    assert "peer name eth0 address 02:00:00:00:01:0c netns 123" in on_login
    assert "addr add 10.177.0.12/24 dev eth0" in on_host


def test_a_command_keeps_its_words() -> None:
    argv = user_argv(Account("alice", 47001, Path("/h")), Path("/a b"), ["echo", "$x y"], new_session=False)
    assert argv[1:4] == ["--reuid=47001", "--regid=47001", "--init-groups"]
    assert argv[-3:] == ["/a b", "echo", "$x y"]


def test_labs_live_in_the_users_runtime_folder() -> None:
    assert find_root({"XDG_RUNTIME_DIR": "/run/user/0"}, 0) == Path("/run/user/0/monarch-hpc-labs-0")
    assert find_root({}, 1000) == Path("/tmp/monarch-hpc-labs-1000")


@pytest.mark.parametrize("name", ["a b", "a'b", "a#b", "a[1]", "a,b", "a%n"])
def test_a_path_that_slurm_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="choose one of letters and digits"):
        LabFolder(Path("/tmp") / name)
