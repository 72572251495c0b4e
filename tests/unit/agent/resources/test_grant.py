from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from monarch_hpc.agent.resources.grant import granted_memory, read_grant
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.machine import cgroup
from monarch_hpc.core.machine.gpus import (
    ordered_gpus,
    own_block,
    parse_device_gpus,
    parse_gpus,
    usable_gpus,
    visible_gpus,
)
from monarch_hpc.core.machine.interfaces import choose_interfaces, host_name

FOUND = {"lo": "127.0.0.1", "eth0": "10.1.0.7", "docker0": "172.17.0.1", "ib0": "10.2.0.7", "hsn0": "10.3.0.7"}


@pytest.mark.parametrize(
    ("wanted", "local", "expected"),
    [
        ([], False, ["eth0", "ib0", "hsn0"]),
        (["hsn*", "ib0"], False, ["hsn0", "ib0"]),
        (["docker0"], False, ["docker0"]),
        ([], True, ["lo"]),
        (["hsn0"], True, ["lo"]),
    ],
)
def test_interfaces(wanted: list[str], local: bool, expected: list[str]) -> None:
    assert choose_interfaces(FOUND, wanted, local=local) == {name: FOUND[name] for name in expected}


def test_loopback_where_there_is_nothing_else() -> None:
    found = {"lo": "127.0.0.1", "docker0": "172.17.0.1"}
    assert choose_interfaces(found, [], local=False) == {"lo": "127.0.0.1"}


def test_interfaces_that_are_not_there_are_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match="known: docker0, eth0, hsn0, ib0, lo"):
        choose_interfaces(FOUND, ["hsn7"], local=False)
    with pytest.raises(ConfigError, match=r"fabric\.interfaces\.login"):
        choose_interfaces(FOUND, ["hsn7"], local=False, side="login")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("CUDA_VISIBLE_DEVICES", ["0", "1"])),
        ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "0,1,2"}, ("CUDA_VISIBLE_DEVICES", ["2"])),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("CUDA_VISIBLE_DEVICES", [])),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ("CUDA_VISIBLE_DEVICES", [])),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("CUDA_VISIBLE_DEVICES", ["1"])),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a1, MIG-b2"}, ("CUDA_VISIBLE_DEVICES", ["GPU-a1", "MIG-b2"])),
        ({"ROCR_VISIBLE_DEVICES": "3"}, ("ROCR_VISIBLE_DEVICES", ["3"])),
        ({"SLURM_STEP_GPUS": "0-2,5", "SLURM_JOB_GPUS": "7"}, ("CUDA_VISIBLE_DEVICES", ["0", "1", "2", "5"])),
        ({"SLURM_JOB_GPUS": "1"}, ("CUDA_VISIBLE_DEVICES", ["1"])),
    ],
)
def test_granted_gpus(environment: dict[str, str], expected: tuple[str, list[str]] | None) -> None:
    assert parse_gpus(environment) == expected


@pytest.mark.parametrize(
    ("num_gpus", "num_places", "expected"),
    [
        (0, 2, [[], []]),
        (4, 1, [["0", "1", "2", "3"]]),
        (4, 2, [["0", "1"], ["2", "3"]]),
        (4, 3, [["0"], ["1"], ["2", "3"]]),
        (2, 4, [["0"], ["1"], ["0"], ["1"]]),
    ],
)
def test_own_blocks(num_gpus: int, num_places: int, expected: list[list[str]]) -> None:
    gpus = [str(index) for index in range(num_gpus)]
    assert [own_block(gpus, place, num_places) for place in range(num_places)] == expected


@pytest.mark.parametrize(
    ("visible", "expected"), [("own-first", ["2", "3", "0", "1"]), ("own", ["2", "3"]), ("all", ["0", "1", "2", "3"])]
)
def test_visible_gpus(visible: str, expected: list[str]) -> None:
    assert visible_gpus(["0", "1", "2", "3"], 1, 2, visible) == expected


def test_gpus_of_a_machine_without_slurm() -> None:
    assert parse_device_gpus(["nvidia10", "null", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia0"]) == ["0", "2", "10"]


@pytest.mark.parametrize(
    ("environment", "limit_bytes", "expected"),
    [
        ({}, None, 1 << 40),
        ({}, 1 << 30, 1 << 30),
        ({"SLURM_MEM_PER_NODE": "512"}, 1 << 30, 1 << 29),
        ({"SLURM_MEM_PER_NODE": "0"}, None, 1 << 40),
        ({"SLURM_MEM_PER_NODE": "?"}, None, 1 << 40),
        ({}, 1 << 50, 1 << 40),
    ],
)
def test_granted_memory(environment: dict[str, str], limit_bytes: int | None, expected: int) -> None:
    assert granted_memory(environment, limit_bytes, 1 << 40) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "9:name=systemd:/\n4:memory:/slurm/uid_1/job_2/step_0\n1:cpu,cpuacct:/\n0::/\n",
            [
                "memory/slurm/uid_1/job_2/step_0",
                "memory/slurm/uid_1/job_2",
                "memory/slurm/uid_1",
                "memory/slurm",
                "memory",
            ],
        ),
        ("0::/system.slice/job_2:x/step\n", ["system.slice/job_2:x/step", "system.slice/job_2:x", "system.slice", "."]),
        ("", ["."]),
        ("nonsense\n", ["."]),
    ],
)
def test_memory_groups(text: str, expected: list[str]) -> None:
    assert cgroup.memory_groups(cgroup.parse_groups(text)) == [PurePosixPath(path) for path in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max\n", None), ("268435456\n", 1 << 28), ("9223372036854771712\n", None), ("", None), ("-1\n", None)],
)
def test_memory_limits(text: str, expected: int | None) -> None:
    assert cgroup.parse_limit(text) == expected


def test_counters() -> None:
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nodd line here\nbroken\n"
    assert cgroup.parse_counters(text) == {"oom_kill_disable": 0, "under_oom": 0, "oom_kill": 3}


def test_slurms_name_of_a_host_goes_first() -> None:
    assert host_name({"SLURMD_NODENAME": "n7"}) == "n7"
    assert "." not in host_name({})


@pytest.mark.parametrize(
    ("environment", "in_job", "usable"),
    [
        ({}, False, ["0", "1"]),
        ({}, True, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, False, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, False, []),
        ({"SLURM_JOB_GPUS": "2,3"}, True, ["2", "3"]),
    ],
)
def test_a_program_may_use_what_it_was_told_or_what_is_there(
    environment: dict[str, str], in_job: bool, usable: list[str]
) -> None:
    assert usable_gpus(environment, ["nvidia0", "nvidia1", "null"], in_job=in_job) == usable


def test_the_sites_order_of_gpus_holds_only_where_all_of_them_are_granted() -> None:
    assert ordered_gpus(["0", "1", "2", "3"], ["3", "2", "1", "0"]) == ["3", "2", "1", "0"]
    assert ordered_gpus(["0", "1"], ["3", "2", "1", "0"]) == ["0", "1"]
    assert ordered_gpus(["GPU-a"], ["0"]) == ["GPU-a"]
    assert ordered_gpus(["1", "0"], []) == ["1", "0"]


@pytest.mark.parametrize(
    ("environment", "keys", "gpus", "variable"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"procs.gpu_order": ["1", "0"]}, ["1", "0"], "CUDA_VISIBLE_DEVICES"),
        (
            {"SLURM_STEP_GPUS": "0"},
            {"procs.gpu_variable": "ROCR_VISIBLE_DEVICES"},
            ["0"],
            "ROCR_VISIBLE_DEVICES",
        ),
        ({}, {}, [], "CUDA_VISIBLE_DEVICES"),
        ({}, {"slurm.gpus_form": "none"}, ["0", "1"], "CUDA_VISIBLE_DEVICES"),
        ({"SLURM_JOB_GPUS": "1"}, {"slurm.gpus_form": "none"}, ["1"], "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_profile_names_order_and_variable_of_gpus_and_where_slurm_does_not_know_them(
    environment: dict[str, str],
    keys: dict[str, object],
    gpus: list[str],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["nvidia1", "nvidia0"] if path == "/dev" else listed(path))
    config = load_config({"HOME": "/home/alice"}, Path("/"), "h", None, keys).config
    grant = read_grant(environment, config, None)
    assert (grant.gpus, grant.gpu_variable) == (gpus, variable)


@pytest.mark.parametrize(("place", "is_own", "num_sharing"), [(None, True, 1), ((0, 1), False, 1), ((1, 4), False, 4)])
def test_a_machine_that_slurm_did_not_grant_is_shared(
    place: tuple[int, int] | None, is_own: bool, num_sharing: int
) -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "h", None, {}).config
    grant = read_grant({}, config, place)
    assert (grant.is_own, grant.num_sharing) == (is_own, num_sharing)
