"""The suite's files that wait run in processes of their own, and no process ends while it could help."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from tests import scheduling
from tests.guards.tree import ROOT
from tests.scheduling import NUM_BUSY, WaitingBesideBusy

COMPUTING = [f"tests/unit/test_{name}.py" for name in "abcdef"]
WAITING = [f"{folder}test_{name}.py" for folder in scheduling.WAITING for name in "gh"]


class Process:
    """Records what the scheduler sends, as xdist's controller of a process would pass it on."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.indices += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(files: list[str], num: int, each: int = 4, crashes_in: str = "") -> Iterator[tuple[int, str]]:
    """Run *each* tests of every file on *num* processes, one after the other; yield process and file of each.

    The first test of *crashes_in* ends its process, and another takes its place.
    """
    tests = [f"{file}::test_{number}" for file in files for number in range(each)]
    options: dict[str, Any] = {"tx": [f"{num}*popen"]}
    config = SimpleNamespace(getvalue=options.__getitem__, option=SimpleNamespace(loadscopereorder=False))
    scheduler = WaitingBesideBusy(config, None)
    processes = [Process() for _ in range(num)]
    for process in processes:
        scheduler.add_node(process)
    for process in processes:
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    while any(process.indices for process in processes):
        for number, process in enumerate(processes):
            # As in a process: the last test runs when it is known that no other follows.
            if len(process.indices) > 1 or (process.indices and process.shutting_down):
                index = process.indices.pop(0)
                yield number, tests[index].partition("::")[0]
                if tests[index] == f"{crashes_in}::test_0":
                    scheduler.remove_node(process)
                    processes[number] = Process()
                    scheduler.add_node(processes[number])
                    scheduler.add_node_collection(processes[number], tests)
                    scheduler.schedule()
                else:
                    scheduler.mark_test_complete(process, index)
    assert scheduler.tests_finished and all(process.shutting_down for process in processes)


@pytest.mark.parametrize("num", [1, 2, 3, 4, 6])
def test_each_test_runs_once_and_a_file_in_one_process(num: int) -> None:
    ran = list(run([*WAITING, *COMPUTING], num))
    assert sorted(file for _, file in ran) == sorted([*WAITING, *COMPUTING] * 4)
    assert len(set(ran)) == len(WAITING) + len(COMPUTING)


def test_few_processes_compute_and_those_wait_last() -> None:
    ran = list(run([*WAITING, *COMPUTING], NUM_BUSY + 2))
    assert {number for number, file in ran if file in COMPUTING} == set(range(NUM_BUSY))
    assert {number for number, file in ran if file in WAITING} >= {NUM_BUSY, NUM_BUSY + 1}
    for busy in range(NUM_BUSY):
        files = [file for number, file in ran if number == busy]
        assert files == sorted(files, key=WAITING.__contains__)


def test_the_longest_files_come_first() -> None:
    first = [file for _, file in run([*WAITING, *COMPUTING, *reversed(scheduling.LONG)], NUM_BUSY + 2, each=1)]
    positions = [first.index(file) for file in scheduling.LONG]
    waiting = [file.startswith(scheduling.WAITING) for file in scheduling.LONG]
    for kind, others in ((True, WAITING), (False, COMPUTING)):
        own = [position for position, waits in zip(positions, waiting, strict=True) if waits is kind]
        assert max(own) < min(map(first.index, others))


@pytest.mark.parametrize("file", [*WAITING, *COMPUTING])
def test_what_a_crash_leaves_of_a_file_is_run_by_others(file: str) -> None:
    ran = list(run([*WAITING, *COMPUTING], 4, crashes_in=file))
    assert sorted(file for _, file in ran) == sorted([*WAITING, *COMPUTING] * 4)


def test_guards_of_the_tree_run_in_one_process_without_the_long_ones() -> None:
    guards = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "guards").glob("test_*.py"))]
    ran = list(run([*COMPUTING, *guards, *WAITING], 4))
    assert len(ran) == 4 * len([*COMPUTING, *guards, *WAITING])
    places = {file: {number for number, other in ran if other == file} for file in guards}
    assert len({*scheduling.LONG}.intersection(guards)) == 2
    assert len(set.union(*(places[file] for file in guards if file not in scheduling.LONG))) == 1


def test_a_part_of_the_suite_runs_too() -> None:
    assert len(list(run(COMPUTING, 4))) == 4 * len(COMPUTING)
    assert len(list(run(WAITING, 4))) == 4 * len(WAITING)


def test_the_folders_that_wait_and_the_longest_files_exist() -> None:
    assert all(list((ROOT / folder).glob("test_*.py")) for folder in scheduling.WAITING)
    assert all((ROOT / file).is_file() for file in scheduling.LONG)
