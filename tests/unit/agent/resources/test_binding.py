from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_hpc.agent.procs.spawner import ProcSpawner
from monarch_hpc.agent.resources.binding import (
    Binding,
    Topology,
    apply,
    check_bindings,
    given_bindings,
    parse_numbers,
    read_topology,
    render_numbers,
    shares,
    threads_of_each,
)

# Two sockets of two cores of two threads each; GPU 0 on the second.
MACHINE = Topology(
    nodes={0: [0, 1, 4, 5], 1: [2, 3, 6, 7]},
    cores={0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 6: 2, 3: 3, 7: 3},
    gpu_nodes={"0": 1, "GPU-a": 1, "1": 0},
)
UNKNOWN = Topology({}, {}, {})
NO_GPUS: list[str] = []


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("8,0-1,1", [0, 1, 8]), (" 2 , 4-4", [2, 4])]
)
def test_lists_of_numbers(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text) == numbers
    assert parse_numbers(render_numbers(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,", "-1", "+0-4", "!1", "1-2-3", "\u0661"])
def test_what_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of numbers"):
        parse_numbers(text)


@pytest.mark.parametrize(
    ("cpus", "owned", "expected"),
    [
        (range(8), [NO_GPUS], [[]]),
        (range(8), [NO_GPUS] * 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (range(8), [NO_GPUS] * 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        # Next to its own GPU, which is the first that it sees.
        (range(8), [["0", "1"], ["1", "0"]], [[2, 3, 6, 7], [0, 1, 4, 5]]),
        (range(8), [["GPU-a"], ["1"]], [[2, 3, 6, 7], [0, 1, 4, 5]]),
        (range(8), [["0"], ["7"]], [[0, 1, 4, 5], [2, 3, 6, 7]]),
        # More procs than cores, and then than CPUs.
        (range(8), [NO_GPUS] * 8, [[0], [4], [1], [5], [2], [6], [3], [7]]),
        (range(8), [NO_GPUS] * 9, [[]] * 9),
        # A part of the machine was granted.
        ([1, 5, 3], [NO_GPUS] * 2, [[1, 5], [3]]),
        ([3], [NO_GPUS] * 2, [[], []]),
    ],
)
def test_shares_of_a_machine(cpus: range | list[int], owned: list[list[str]], expected: list[list[int]]) -> None:
    assert shares(list(cpus), owned, MACHINE) == expected


def test_shares_where_the_machine_tells_nothing() -> None:
    for num_cpus in range(1, 20):
        for num in range(1, 20):
            dealt = shares(list(range(num_cpus)), [NO_GPUS] * num, UNKNOWN)
            if 1 < num <= num_cpus:
                assert sorted(cpu for share in dealt for cpu in share) == list(range(num_cpus))
                assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
            else:
                assert dealt == [[]] * num


@pytest.mark.parametrize(
    ("is_own", "per_host", "expected"),
    [(True, 2, [[0, 1, 4, 5], [2, 3, 6, 7]]), (True, 1, [[]]), (True, 9, [[]] * 9), (False, 2, [[], []])],
)
def test_procs_are_bound_to_shares_of_what_is_their_hosts_own(
    is_own: bool, per_host: int, expected: list[list[int]]
) -> None:
    spawner: Any = ProcSpawner.__new__(ProcSpawner)
    spawner._settings = SimpleNamespace(grant=SimpleNamespace(cpus=list(range(8)), num_sharing=1, is_own=is_own))
    spawner._gpus, spawner._topology = lambda _order, _rank: NO_GPUS, lambda: MACHINE
    bindings, num_threads = spawner._bindings(SimpleNamespace(bind="auto", per_host=per_host))
    assert [one.cpus for one in bindings] == expected
    assert num_threads == threads_of_each(8, per_host, 1)


@pytest.mark.parametrize(
    ("num_cpus", "per_host", "num_sharing", "expected"),
    [(64, 1, 1, 0), (64, 8, 1, 8), (2, 3, 1, 1), (2, 1, 2, 1), (8, 1, 2, 4), (8, 2, 2, 2), (8, 4, 4, 1)],
)
def test_procs_compute_with_their_part_of_the_cpus(
    num_cpus: int, per_host: int, num_sharing: int, expected: int
) -> None:
    assert threads_of_each(num_cpus, per_host, num_sharing) == expected


def test_what_a_user_gives() -> None:
    given = [
        {"cpus": "0-1"},
        {"physcpubind": "2,6", "membind": "1"},
        {"cpunodebind": "0"},
        {"cpunodebind": "1", "cpus": "0-3", "membind": "all"},
        {},
    ]
    granted = [0, 1, 2, 3, 4, 6]
    check_bindings(given, 5, {"n1": granted})
    assert given_bindings(given, granted, MACHINE) == [
        Binding([0, 1], []),
        Binding([2, 6], [1]),
        Binding([0, 1, 4], []),
        Binding([2, 3], [0, 1]),
        Binding([], []),
    ]


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ({"cpus": "5,7"}, r"proc_bind\[0\]\['cpus'\] asks for 5,7; CPUs granted here: 0-4"),
        ({"membind": "2"}, r"\['membind'\] asks for 2; NUMA nodes here: 0-1"),
        ({"cpunodebind": "2"}, r"\['cpunodebind'\] asks for 2; NUMA nodes here: 0-1"),
        ({"cpunodebind": "1", "cpus": "0"}, "leaves no CPU of those granted here: 0-4"),
    ],
)
def test_what_a_host_cannot_give(binding: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        given_bindings([binding], range(5), MACHINE)


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    for path, text in {
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
        "sys/devices/system/node/node2/cpulist": "\n",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1\n",
        "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "0-1\n",
        "sys/devices/system/cpu/cpufreq/boost": "1\n",
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n",
        "sys/bus/pci/devices/0000:5e:00.0/numa_node": "-1\n",
        "proc/driver/nvidia/gpus/0000:3B:00.0/information": "Model: \t X\nGPU UUID: \t GPU-a1\nDevice Minor: \t 0\n",
        "proc/driver/nvidia/gpus/0000:5e:00.0/information": "GPU UUID: \t GPU-b2\nDevice Minor: \t 1\n",
        "proc/driver/nvidia/gpus/0000:ff:00.0/information": "GPU UUID: \t GPU-c3\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = read_topology(tmp_path / "sys", tmp_path / "proc")
    assert found == Topology({0: [0, 1], 1: [2, 3], 2: []}, {0: 0, 1: 0}, {"GPU-a1": 1, "0": 1})


def test_this_machine_can_be_read() -> None:
    found = read_topology()
    assert found.node_of(min(os.sched_getaffinity(0))) in {0, *found.nodes}


def test_what_the_kernel_refuses_is_named() -> None:
    with pytest.raises(OSError, match="cannot run on CPUs 4000: "):
        apply([4000], [])
    with pytest.raises(OSError, match="cannot take memory from NUMA nodes 1000: "):
        apply([], [1000])
