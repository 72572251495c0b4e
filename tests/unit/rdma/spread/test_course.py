"""Copies of which receivers die, stop, or cannot reach each other, at every moment: the others get all bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from functools import partial

import pytest

from monarch_hpc.rdma.spread.course import PATIENCE_S, Course
from monarch_hpc.rdma.spread.tree import SOURCE

CHUNKS = 3
MOST_ROUNDS = 60
LAYOUTS = {
    "chain": ["n1", "n2", "n3", "n4"],
    "pairs": ["n1", "n1", "n2", "n2"],
    "beside the source": ["n0", "n0", "n1", "n2"],
    "all in one": ["n1", "n1", "n1"],
}

layouts = pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS.keys())


class Run:
    """Receivers that get a chunk a round from a parent that has more, and say what real ones say.

    Args:
        told_late: who asked hears of a death only after those who pulled from there have reported it.
        cannot: pairs that cannot connect: who pulls, and from whom.
    """

    def __init__(
        self, hosts: list[str], *, told_late: bool = False, cannot: Collection[tuple[int, int]] = (), fan_out: int = 1
    ) -> None:
        self.course = Course(dict(enumerate(hosts)), "n0", CHUNKS, fan_out)
        self.chunks = dict.fromkeys(range(len(hosts)), 0) | {SOURCE: CHUNKS}
        self.parents: dict[int, int] = {}
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.told: set[int] = set()
        self.told_late = told_late
        self.cannot = cannot
        self.now_s = 0.0
        self.course.start(0.0)
        for each in range(len(hosts)):
            self.course.ready(each, 0.0)
        assert self.course.take_orders() == {}
        assert not self.course.opening
        self.course.begin()
        self.obey(self.course.take_orders())

    def obey(self, orders: dict[int, int]) -> None:
        self.parents.update(orders)
        for each in self.parents:
            seen, above = {each}, self.parents[each]
            while above in self.parents and above not in self.course.failed and self.chunks[above] < CHUNKS:
                assert above not in seen, f"a circle: {self.parents}"
                seen.add(above)
                above = self.parents[above]

    def round(self) -> None:
        """One chunk for each receiver that can have one, in the order of the tree's depth or against it."""
        before = dict(self.chunks)
        for each in [each for each in self.parents if each not in self.dead | self.stopped]:
            parent = self.parents[each]
            if self.chunks[each] < CHUNKS and (parent in self.dead or (each, parent) in self.cannot):
                del self.parents[each]
                self.course.stuck(each, parent, f"no {parent}", self.now_s)
                self.obey(self.course.take_orders())
            elif before[parent] > before[each] and parent not in self.stopped:
                self.chunks[each] += 1
            self.course.report(each, self.chunks[each], self.now_s)
            self.obey(self.course.take_orders())
        for each in self.dead - self.told:
            self.tell(each)
        self.now_s += PATIENCE_S / 4
        self.course.look(self.now_s)
        self.obey(self.course.take_orders())

    def kill(self, each: int) -> None:
        self.dead.add(each)
        if not self.told_late:
            self.tell(each)

    def tell(self, each: int) -> None:
        self.told.add(each)
        if each == SOURCE:
            self.course.source_lost("the source died")
            self.obey(self.course.take_orders())
        else:
            self.course.lost(each, "it died")
            self.obey(self.course.take_orders())

    def finish(self, events: dict[int, Callable[[], object]]) -> int:
        """Run to the end, with what happens before which round; return the number of rounds."""
        for number in itertools.count():
            if number in events:
                events.pop(number)()
            if not events and all(each in self.stopped for each in self.course.left):
                return number
            assert number < MOST_ROUNDS, f"no end: {self.chunks}, {self.parents}"
            self.round()
        raise AssertionError


def whole(run: Run) -> set[int]:
    return {each for each in run.chunks if each != SOURCE and run.chunks[each] == CHUNKS}


def orders_of(num: int, hosts: list[str]) -> Iterable[tuple[int, ...]]:
    return itertools.permutations(range(len(hosts)), num)


@layouts
def test_without_faults_a_chain_takes_a_round_a_hop_longer(hosts: list[str]) -> None:
    run = Run(hosts)
    assert run.finish({}) <= CHUNKS + len(hosts)
    assert whole(run) == set(range(len(hosts))) and not run.course.failed


@layouts
@pytest.mark.parametrize("told_late", [False, True], ids=["told first", "told late"])
def test_the_others_get_all_bytes_whoever_dies_and_when(hosts: list[str], told_late: bool) -> None:
    undisturbed = Run(hosts).finish({})
    for dying in range(len(hosts)):
        for moment in range(undisturbed):
            run = Run(hosts, told_late=told_late)
            rounds = run.finish({moment: partial(run.kill, dying)})
            assert set(run.course.failed) == {dying}
            assert whole(run) >= set(range(len(hosts))) - {dying}
            assert rounds <= undisturbed + 4


@layouts
def test_two_die_at_any_moments(hosts: list[str]) -> None:
    last = CHUNKS + len(hosts)
    for first, second in orders_of(2, hosts):
        for one, other in itertools.combinations(range(last), 2):
            run = Run(hosts, told_late=True)
            run.finish(
                {
                    one: partial(run.kill, first),
                    other: partial(run.kill, second),
                }
            )
            assert set(run.course.failed) <= {first, second}
            assert whole(run) >= set(range(len(hosts))) - set(run.course.failed)


@layouts
@pytest.mark.parametrize("told_late", [False, True], ids=["told first", "told late"])
def test_the_source_dies_and_who_has_all_bytes_serves_the_others(hosts: list[str], told_late: bool) -> None:
    seen = set()
    for moment in range(Run(hosts).finish({})):
        run = Run(hosts, told_late=told_late)
        run.finish({moment: partial(run.kill, SOURCE)})
        if whole(run):
            assert not run.course.failed and len(whole(run)) == len(hosts)
        else:
            assert run.course.failed == dict.fromkeys(range(len(hosts)), "the source died")
        seen.add(bool(whole(run)))
    assert seen == {False, True}


@layouts
def test_the_others_get_all_bytes_whoever_is_stopped_and_when(hosts: list[str]) -> None:
    undisturbed = Run(hosts).finish({})
    for stopped in range(len(hosts)):
        for moment in range(undisturbed):
            run = Run(hosts)
            rounds = run.finish({moment: partial(run.stopped.add, stopped)})
            assert not run.course.failed
            assert whole(run) >= set(range(len(hosts))) - {stopped}
            assert rounds <= undisturbed + 6  # with patience of four rounds
            run.stopped.clear()
            run.finish({})
            assert len(whole(run)) == len(hosts)


@layouts
def test_who_cannot_reach_its_parent_finds_another(hosts: list[str]) -> None:
    everyone = range(len(hosts))
    pairs = [(child, parent) for child in everyone for parent in [SOURCE, *everyone] if child != parent]
    for cannot in [*itertools.combinations(pairs, 1), *itertools.combinations(pairs, 2)]:
        run = Run(hosts, cannot=cannot)
        run.finish({})
        assert not run.course.failed and len(whole(run)) == len(hosts), cannot


def test_who_reaches_nobody_fails_alone() -> None:
    run = Run(LAYOUTS["chain"], cannot=[(1, SOURCE), (1, 0), (1, 2), (1, 3)])
    run.finish({})
    assert set(run.course.failed) == {1} and whole(run) == {0, 2, 3}


def test_a_process_that_did_not_run_itself_passes_nobody_over() -> None:
    course = Course({0: "n1", 1: "n2"}, "n0", CHUNKS)
    course.start(0.0)
    for each in range(2):
        course.ready(each, 0.0)
    course.begin()
    assert course.take_orders() == {0: SOURCE, 1: 0}
    course.look(100.0)
    assert course.take_orders() == {} and not course.is_silent(0)
    orders = []
    for step in range(1, 7):
        now_s = 100.0 + step * PATIENCE_S / 4
        course.report(1, 0, now_s)
        course.look(now_s)
        orders.append(course.take_orders())
    assert [order for order in orders if order] == [{0: 1, 1: SOURCE}] and course.is_silent(0)


def test_who_answers_late_joins_as_a_leaf() -> None:
    course = Course({0: "n1", 1: "n2"}, "n0", CHUNKS)
    course.start(0.0)
    course.ready(1, 0.0)
    for step in range(1, 8):
        course.look(step * PATIENCE_S / 4)
        # The patience begins with the last answer: a process that asks ten thousand gets the answers one by one.
        if step == 3:
            course.ready(1, 3 * PATIENCE_S / 4)
        assert course.opening is (step < 7)
    course.begin()
    assert course.take_orders() == {1: SOURCE}
    course.ready(0, 4.0)
    assert course.take_orders() == {0: 1}
