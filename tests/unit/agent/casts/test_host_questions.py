"""Questions on the tree of agents: each host is in the answer once, with its rows or by name, whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from monarch_hpc.agent.casts.host_questions import HostQuestions
from monarch_hpc.testing import ManualClock
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.questions import AskHosts, Portion, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.scribe import MergeParts
from monarch_hpc.wire.tables.pieces import AnswerPart, HostQuestion, parse_part, spans_of, sql_tables

TIMEOUT_S = 2.0
NEEDED_S = 0.001
"""Time that a message takes."""


class Host:
    """One agent, and its side of the network."""

    def __init__(self, tree: Tree, rank: int, num_hosts: int, fanout: int, max_bytes: int) -> None:
        self._tree = tree
        self.rank = rank
        self.usable = set(range(num_hosts))
        usable = self.usable.__contains__
        self.questions = HostQuestions(rank, num_hosts, fanout, usable, self, self, max_bytes)
        self.questions.on_roster([entry(other) for other in range(num_hosts) if other in self.usable], num_hosts)

    def rows(self, question: AskHosts, max_bytes: int, take: Callable[[Portion | None], None]) -> None:
        rows = self._tree.part_of(self.rank) if question.pieces else f"[[{self.rank}]]"
        portion = None if self.rank in self._tree.unreadable else Portion(f"host n{self.rank}", rows)
        if self.rank in self._tree.slow:
            self.later(NEEDED_S, lambda: take(portion))
        else:
            take(portion)

    def merge(
        self, question: AskHosts, portions: Sequence[Portion], max_bytes: int, take: Callable[[Portion | None], None]
    ) -> None:
        if self.rank in self._tree.without_engine:
            take(None)
            return
        parts = [parse_part(portion.rows) for portion in portions]
        key = tuple(part.results for part in parts)
        if key not in self._tree.merged:
            texts = [portion.rows for portion in portions]
            self._tree.merged[key] = (
                pytest.importorskip("monarch_hpc.telemetry.sql.replies")
                .merge_parts(MergeParts(1, "hosts", question.pieces, texts, 1.0, max_bytes))
                .results
            )
        ranks = [rank for part in parts for first, last in part.ranks for rank in range(first, last)]
        take(Portion("hosts", AnswerPart(self._tree.merged[key], ranks=spans_of(ranks)).render()))

    def ask_host(self, rank: int, question: AskHosts) -> None:
        self._tree.asked.append((self.rank, rank))
        self._tree.send(rank, lambda host: host.questions.on_ask(question, self._reply_from(host)))

    def _reply_from(self, other: Host) -> Callable[[Message], None]:
        def reply(message: Message) -> None:
            if self.rank == 0:
                self._tree.num_bytes_into_root += len(encode(message))
            if other.rank not in self._tree.silent:
                self._tree.send(self.rank, lambda host: host.take(other.rank, message))

        return reply

    def take(self, rank: int, message: Message) -> None:
        if isinstance(message, Rows):
            self.questions.on_rows(rank, message)
        elif isinstance(message, Refused):
            self.questions.on_refused(rank, message.number)

    def later(self, delay_s: float, callback: Callable[[], None]) -> object:
        return self._tree.clock.call_later(delay_s, callback)


class Tree:
    """All agents of an allocation; messages take a millisecond, those to and from *silent* hosts for ever."""

    def __init__(self, num_hosts: int, fanout: int, max_bytes: int = 1 << 20) -> None:
        self.clock = ManualClock()
        self.silent: set[int] = set()
        self.unreadable: set[int] = set()
        self.slow: set[int] = set()  # they read their rows in the background
        self.asked: list[tuple[int, int]] = []
        self.part_of: Callable[[int], str] = str
        self.without_engine: set[int] = set()
        self.merged: dict[tuple[str, ...], str] = {}
        self.num_bytes_into_root = 0
        self.hosts = [Host(self, rank, num_hosts, fanout, max_bytes) for rank in range(num_hosts)]
        self.question = AskHosts(5, "procs", {}, TIMEOUT_S, 0, num_hosts, [[0, num_hosts]])

    def send(self, rank: int, deliver: Callable[[Host], None]) -> None:
        def arrive() -> None:
            if rank not in self.silent:
                deliver(self.hosts[rank])

        self.clock.call_later(NEEDED_S, arrive)

    def ask(self, question: AskHosts | None = None) -> Rows:
        """Return the answer, which must come in time, to the head."""
        self.asked.clear()
        answers: list[Message] = []
        self.hosts[0].questions.on_ask(question or self.question, answers.append)
        self.clock.advance(TIMEOUT_S)
        (answer,) = answers
        assert isinstance(answer, Rows) and answer.ticket == 5
        return answer


@cache  # the hosts of a tree know the same ones: of a thousand, a million entries
def entry(rank: int) -> HostEntry:
    return HostEntry(rank, f"n{rank}", [], 0, "", "", [], [], 0, {})


def named(answer: Rows) -> list[int]:
    """The hosts of an answer, each as often as it occurs."""
    sources = [portion.source for portion in answer.portions] + answer.missing + answer.left_out
    return sorted(int(source.removeprefix("host n")) for source in sources)


@pytest.mark.parametrize(("num_hosts", "fanout"), [(1, 16), (5, 2), (40, 3), (120, 16)])
def test_all_hosts_answer_and_none_asks_more_than_its_share(num_hosts: int, fanout: int) -> None:
    tree = Tree(num_hosts, fanout)
    tree.slow = set(range(0, num_hosts, 3))
    answer = tree.ask()
    assert named(answer) == list(range(num_hosts)) and not answer.missing
    assert {portion.source: portion.rows for portion in answer.portions}[f"host n{num_hosts - 1}"] == (
        f"[[{num_hosts - 1}]]"
    )
    assert sorted(to for _, to in tree.asked) == list(range(1, num_hosts))  # each once
    for rank in range(num_hosts):
        assert sum(source == rank for source, _ in tree.asked) <= fanout


def test_a_silent_host_is_named_with_those_behind_it_and_the_others_answer_in_time() -> None:
    tree = Tree(15, 2)
    tree.silent = {5}
    answer = tree.ask()
    behind = [to for source, to in tree.asked if source == 5]
    assert behind == [], "it was not reached"
    assert named(answer) == list(range(15))
    assert "host n5" in answer.missing and len(answer.missing) == 3
    assert len(answer.portions) == 12


def test_a_lost_host_is_named_and_those_behind_it_are_asked_through_another() -> None:
    tree = Tree(15, 2)
    tree.silent = {5}
    for host in tree.hosts:
        host.questions.on_host_lost(5)
    answer = tree.ask()
    assert answer.missing == ["host n5"] and named(answer) == list(range(15))


def test_a_host_that_is_lost_or_cut_off_while_it_is_asked_is_not_waited_for() -> None:
    for lose in (HostQuestions.on_host_lost, HostQuestions.on_host_cut):
        tree = Tree(3, 2)
        tree.silent = {2}
        answers: list[Message] = []
        tree.hosts[0].questions.on_ask(tree.question, answers.append)
        tree.clock.advance(0.01)
        assert answers == []
        lose(tree.hosts[0].questions, 2)
        (answer,) = answers
        assert isinstance(answer, Rows) and answer.missing == ["host n2"] and named(answer) == [0, 1, 2]


def test_a_host_that_cannot_read_its_rows_is_named_and_asks_the_others() -> None:
    tree = Tree(15, 2)
    tree.unreadable = {0, 5}
    answer = tree.ask()
    assert sorted(answer.missing) == ["host n0", "host n5"] and named(answer) == list(range(15))


def test_only_the_wanted_hosts_are_asked() -> None:
    tree = Tree(40, 3)
    answer = tree.ask(replace(tree.question, hosts=[[7, 9], [30, 31]]))
    assert named(answer) == [7, 8, 30]
    assert len(tree.asked) < 12  # those, and hosts on the way to them


def test_an_answer_within_the_limit_names_the_hosts_that_are_left_out() -> None:
    tree = Tree(40, 3, max_bytes=100)  # rows take five bytes, or six
    answer = tree.ask()
    assert sum(len(portion.rows) for portion in answer.portions) <= 100
    assert len(answer.portions) >= 16 and named(answer) == list(range(40)) and not answer.missing


def test_whatever_is_silent_or_lost_each_host_is_in_the_answer_once() -> None:
    chance = random.Random(7)
    for _ in range(30):
        num_hosts = chance.randrange(2, 40)
        tree = Tree(num_hosts, chance.randrange(2, 5), chance.choice([100, 1 << 20]))
        tree.silent = {rank for rank in range(1, num_hosts) if chance.random() < 0.15}
        for host in tree.hosts:
            for rank in tree.silent:
                if chance.random() < 0.5:
                    host.questions.on_host_lost(rank)
        answer = tree.ask()
        assert named(answer) == list(range(num_hosts))
        assert {f"host n{rank}" for rank in tree.silent} <= set(answer.missing)


@pytest.mark.parametrize(
    "changes",
    [{"low": -1}, {"low": 1}, {"high": 6}, {"high": 0}, {"hosts": [[0]]}, {"hosts": [[3, 3]]}, {"hosts": [[0, 9]]}],
)
def test_a_question_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    tree = Tree(5, 2)
    answers: list[Message] = []
    tree.hosts[0].questions.on_ask(replace(tree.question, **changes), answers.append)  # type: ignore[arg-type]
    (answer,) = answers
    assert isinstance(answer, Refused) and (answer.request, answer.number) == ("AskHosts", 5)
    assert tree.asked == []


@pytest.fixture(scope="module")
def engine() -> None:
    """The engine keeps threads and descriptors of its own."""
    pytest.importorskip("sqlglot")
    pytest.importorskip("monarch_hpc.telemetry.sql.planning").Planner().plan("SELECT 1")


@pytest.mark.slow  # the engine combines the results of a thousand hosts
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("lost", [set(), {1, 17, 500}], ids=["all", "lost"])
def test_groups_of_a_thousand_hosts_are_few_bytes_at_the_root(lost: set[int]) -> None:
    import pyarrow as pa

    from monarch_hpc.telemetry.kept.arrow import schema_of
    from monarch_hpc.telemetry.sql import context, results
    from monarch_hpc.telemetry.sql.planning import Planner

    sql = "SELECT endpoint, count(*) AS calls, avg(ran_us) AS us, max(queued_us) AS most FROM handled GROUP BY endpoint"
    plan = Planner().plan(sql).split
    assert plan.rule == "partial"
    rows = [
        {"endpoint": f"step{place % 20}", "host": "n", "ran_us": float(place), "queued_us": place}
        for place in range(100)
    ]
    table = pa.Table.from_pylist(rows, schema=schema_of(sql_tables()["handled"]))
    packed = results.pack(context.results_of(plan.pieces, context.RowSet({"handled": table}), []))
    tree = Tree(1000, 16, max_bytes=16 << 20)
    tree.part_of = lambda rank: AnswerPart(packed, ranks=[[rank, rank + 1]]).render()
    tree.silent = lost
    tree.without_engine = {2, 70}
    answer = tree.ask(replace(tree.question, table="handled", pieces=HostQuestion(list(plan.pieces)).render()))
    parts = [parse_part(portion.rows) for portion in answer.portions]
    assert len(parts) == 1
    num_hosts = sum(last - first for first, last in parts[0].ranks)
    assert num_hosts + len(answer.missing) == 1000
    assert bool(answer.missing) == bool(lost)
    found = context.finish(plan, [results.unpack(parts[0].results)], context.RowSet(), [])
    assert {row["calls"] for row in found.to_pylist()} == {5 * num_hosts}
    assert sorted(row["us"] for row in found.to_pylist()) == [40.0 + place for place in range(20)]
    print(f"{tree.num_bytes_into_root} bytes into the root")
    assert tree.num_bytes_into_root <= 20_000
