"""Casts, arriving in any order and with any deaths: handled in the order sent, at most once, and fully answered."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.actor.casts.send_order import SendOrder
from monarch_hpc.agent.casts.tree import branches, growth, narrow, position_of, rank_at
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.testing.simulated_allocation import SimulatedAllocation
from monarch_hpc.wire.casts import (
    Cast,
    Lost,
    Mark,
    Note,
    NoteKind,
    Target,
    pack_cast,
    pack_lost,
    pack_notes,
    pack_target,
    parse_cast,
    parse_lost,
    parse_notes,
    parse_target,
    spans_of,
)
from monarch_hpc.wire.frames import Frame, Kind, RefusedBuffers

_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_SPANS = st.sets(st.integers(0, 200)).map(spans_of)
_BODIES = st.binary(max_size=40)


# ---- wire format ----


@given(
    st.sampled_from([Kind.CALL, Kind.SPAWN, Kind.STOP]),
    st.booleans(),
    _U64,
    _U64,
    _U32,
    st.tuples(_U32, _U32).map(sorted),
    _BODIES,
    _SPANS,
    st.lists(_U32, max_size=4),
    _U64,
    _BODIES,
    st.lists(_BODIES, max_size=3),
    _BODIES,
)
def test_a_cast_is_read_as_it_was_written(
    kind: Kind,
    answered: bool,
    origin: int,
    number: int,
    root: int,
    interval: list[int],
    target: bytes,
    hosts: tuple[tuple[int, int], ...],
    waits: list[int],
    actor: int,
    body: bytes,
    buffers: list[bytes],
    functions: bytes,
) -> None:
    cast = Cast(
        kind,
        answered,
        not answered,
        origin,
        number,
        root,
        interval[0],
        interval[1],
        target,
        hosts,
        tuple(waits),
        actor,
        body,
        tuple(buffers),
        functions,
    )
    assert parse_cast(pack_cast(cast)) == cast


@given(st.lists(st.builds(Note, st.sampled_from(NoteKind), _U64, _U64, _U32, _BODIES, st.lists(_BODIES).map(tuple))))
def test_notes_are_read_as_they_were_written(notes: list[Note]) -> None:
    read = parse_notes(pack_notes(notes))
    assert [dataclasses.replace(note, buffers=tuple(note.buffers)) for note in read] == notes


@given(_SPANS, st.text(max_size=20))
def test_the_news_of_lost_hosts_is_read_as_it_was_written(hosts: tuple[tuple[int, int], ...], cause: str) -> None:
    assert parse_lost(pack_lost(Lost(hosts, cause))) == Lost(hosts, cause)


@given(st.lists(st.integers(1, 4), max_size=3), st.integers(-50, 50), st.text("0123456789abcdef", max_size=8))
def test_a_target_keeps_all_but_the_names_of_its_dimensions(sizes: list[int], offset: int, run: str) -> None:
    lives = dict.fromkeys(sizes, 3)
    region = Region.whole(Extent(tuple("abc"[: len(sizes)]), tuple(sizes)))
    region = Region(region.extent, offset, region.strides)
    read = parse_target(pack_target(Target(run, 5, region, lives)))
    assert (read.run, read.mesh, read.lives) == (run, 5, lives)
    assert list(read.region.base_ranks()) == list(region.base_ranks())
    for place, rank in enumerate(region.base_ranks()):
        assert read.place_of(rank) == place
    assert read.place_of(max(region.base_ranks()) + 1) is None


@given(st.binary(max_size=120))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (
        lambda: parse_cast(Frame(Kind.CAST, 1, 2, data)),
        lambda: parse_notes(Frame(Kind.NOTES, 0, 0, data)),
        lambda: parse_target(data),
        lambda: parse_lost(data),
    ):
        try:
            parse()
        except FrameError:
            pass


# ---- the tree ----


@given(st.integers(1, 300), st.integers(0, 299), st.integers(2, 16))
def test_every_host_is_given_to_one_other_and_the_way_is_short(num: int, root: int, fanout: int) -> None:
    root %= num
    reached = {root: 0}
    row = [(root, (0, num))]
    while row:
        below = []
        for rank, interval in row:
            pieces = branches(interval, position_of(rank, root), fanout)
            assert len(pieces) <= fanout
            for piece in pieces:
                head = rank_at(piece[0], root)
                assert head not in reached
                reached[head] = reached[rank] + 1
                below.append((head, piece))
        row = below
    assert sorted(reached) == list(range(num))
    depth, held = 0, 1
    while held < num:
        depth += 1
        held += fanout**depth
    assert max(reached.values()) == depth


@given(_SPANS, st.integers(1, 201), st.integers(0, 200), st.data())
def test_pieces_of_the_tree_share_out_the_hosts(
    hosts: tuple[tuple[int, int], ...], num: int, root: int, data: st.DataObject
) -> None:
    root %= num
    middle = data.draw(st.integers(0, num))
    wanted = {rank for start, stop in hosts for rank in range(start, stop) if rank < num}
    parts = [narrow(hosts, piece, root) for piece in ((0, middle), (middle, num))]
    found = [rank for part in parts for start, stop in part for rank in range(start, stop)]
    assert sorted(found) == sorted(wanted)
    assert all(position_of(rank, root) < middle for start, stop in parts[0] for rank in range(start, stop))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(0, 99), st.integers(2, 16))
def test_a_host_is_reached_on_the_same_way_before_and_after_hosts_were_added(
    added: list[int], root: int, fanout: int
) -> None:
    sizes = list(itertools.accumulate(added))
    root %= sizes[0]

    def ways(num_sizes: int) -> dict[int, int]:
        """Host -> the host from which it gets casts."""
        found: dict[int, int] = {}
        row = [(root, interval) for interval in growth(sizes[:num_sizes])]
        while row:
            rank, interval = row.pop()
            for piece in branches(interval, position_of(rank, root), fanout):
                head = rank_at(piece[0], root)
                assert head not in found
                found[head] = rank
                row.append((head, piece))
        return found

    for number in range(1, len(sizes) + 1):
        now = ways(number)
        assert sorted([root, *now]) == list(range(sizes[number - 1]))
        assert now.items() <= ways(len(sizes)).items()


# ---- two streams of one sender ----


@given(st.lists(st.sampled_from(["direct", "cast"]), max_size=30), st.randoms(use_true_random=False))
def test_two_streams_become_what_was_sent(sent: list[str], chance: random.Random) -> None:
    direct: list[tuple[str, int, int]] = []
    casts: list[tuple[int, int, bool]] = []
    number, dirty, told = 0, False, 0
    for item, way in enumerate(sent):
        if way == "cast":
            number += 1
            if dirty:
                direct.append(("before", number, -1))
            casts.append((number, item, dirty))
            dirty = False
        else:
            if told < number:
                direct.append(("after", number, -1))
                told = number
            direct.append(("item", 0, item))
            dirty = True
    send_order: SendOrder[int] = SendOrder()
    out: list[int] = []
    while direct or casts:
        if direct and (not casts or chance.random() < 0.5):
            kind, about, item = direct.pop(0)
            if kind == "item":
                out += send_order.direct(item)
            else:
                out += send_order.mark(Mark.BEFORE if kind == "before" else Mark.AFTER, about)
        else:
            about, item, waits = casts.pop(0)
            out += send_order.cast(about, item, waits=waits) or []
    assert out == list(range(len(sent)))
    assert send_order.num_held == 0


def test_what_does_not_come_holds_up_nothing_once_that_is_said() -> None:
    send_order: SendOrder[str] = SendOrder()
    assert send_order.mark(Mark.AFTER, 2) == []
    assert send_order.direct("direct") == []
    assert send_order.cast(1, "one", waits=False) == ["one"]
    assert send_order.mark(Mark.SKIP, 2) == ["direct"]
    assert send_order.cast(2, "two", waits=False) is None
    assert send_order.cast(3, "three", waits=True) == []
    assert send_order.cut() == ["three"]


# ---- routers ----


@given(st.integers(1, 12), st.integers(1, 3), st.integers(2, 4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_whoever_dies_every_rank_is_answered_once_and_in_order(
    num_hosts: int, per_host: int, fanout: int, num_deaths: int, chance: random.Random
) -> None:
    simulated = SimulatedAllocation(num_hosts, per_host, fanout, chance)
    whole = simulated.region
    regions = {}
    dead_procs: set[int] = set()
    for step in range(12):
        low = chance.randrange(num_hosts)
        region = whole if chance.random() < 0.5 else whole.slice(hosts=slice(low, num_hosts))
        regions[simulated.cast(region)] = region
        simulated.run(chance.randrange(40))
        if step % 3 == 2 and num_deaths:
            num_deaths -= 1
            victim = chance.randrange(1, num_hosts + 1)
            if victim < num_hosts and victim not in simulated.dead and chance.random() < 0.5:
                simulated.kill(victim)
            else:
                proc = chance.randrange(num_hosts * per_host)
                if proc not in dead_procs and proc // per_host not in simulated.dead:
                    dead_procs.add(proc)
                    simulated.kill_proc(proc)
    simulated.run()
    for number, region in regions.items():
        answers, told = simulated.sender.answers[number], simulated.sender.ended[number]
        assert told == {NoteKind.LAST, NoteKind.DONE}
        assert sorted(answers) == list(range(len(region)))
        for place, rank in enumerate(region.base_ranks()):
            alive = rank not in dead_procs and rank // per_host not in simulated.dead
            if alive and not simulated.dead:
                assert answers[place] is NoteKind.RESULT
            if answers[place] is NoteKind.RESULT:
                assert number in simulated.procs[rank].seen
    for each in simulated.procs:
        assert each.seen == sorted(set(each.seen))
        for number in each.seen:
            assert each.rank in regions[number].base_ranks()
    for rank, router in enumerate(simulated.routers):
        if rank not in simulated.dead:
            assert router.num_in_flight == 0


@pytest.mark.parametrize("num_hosts", [1, 16, 17, 273, 1000])
def test_the_senders_frames_do_not_grow_with_the_mesh(num_hosts: int) -> None:
    simulated = SimulatedAllocation(num_hosts, 2, 16)
    for _ in range(2):
        simulated.cast()
        simulated.run()
    assert simulated.sender.frames == {"sent": 2, "received": 2}
    assert max(simulated.frames.values()) / 2 <= 16 + 2 + 1  # to other agents, to its procs, and up
    assert simulated.hops == next(hops for hops in range(5) if sum(16**row for row in range(hops + 1)) >= num_hosts)


def test_a_cast_that_was_overtaken_on_another_way_is_dropped_and_answered_for() -> None:
    simulated = SimulatedAllocation(4, 1, 2)  # 0 has 1 and 2 behind it, 2 has 3
    simulated.cast()
    simulated.run()
    late = simulated.cast()
    simulated.run(4)  # host 2 has it, and has sent it on to host 3
    simulated.hold(("host", 2, 3))
    simulated.kill(2)
    simulated.run()
    early = simulated.cast()
    simulated.run()
    assert simulated.procs[3].seen == [1, early]
    simulated.release()
    simulated.run()
    assert simulated.procs[3].seen == [1, early]
    assert simulated.sender.answers[late] == {
        0: NoteKind.RESULT,
        1: NoteKind.RESULT,
        2: NoteKind.LOST,
        3: NoteKind.LOST,
    }
    assert simulated.sender.answers[early] == {
        0: NoteKind.RESULT,
        1: NoteKind.RESULT,
        2: NoteKind.LOST,
        3: NoteKind.RESULT,
    }


class _ShortOfMemory(SimulatedAllocation):
    """One in which the buffers of frames to or from one host cannot be held."""

    short = 1
    kind = ""

    def send(self, link: tuple[str, int, int], frame: Frame) -> None:
        kind, source, to = link
        if kind == self.kind and self.short in (source, to) and not isinstance(frame.buffers, RefusedBuffers):
            refused = RefusedBuffers((5,) * max(len(frame.buffers), 1), "little memory")
            frame = dataclasses.replace(frame, buffers=refused)
        super().send(link, frame)


def test_a_cast_that_an_agent_cannot_hold_is_answered_for_all_behind_it() -> None:
    """And the next one, which is smaller, reaches all."""
    simulated = _ShortOfMemory(9, 2, 2)
    simulated.kind = "host"
    number = simulated.cast()
    simulated.run()
    answers = simulated.sender.answers[number]
    assert answers.keys() == set(range(18)) and simulated.sender.ended[number] == {NoteKind.LAST, NoteKind.DONE}
    lost = {rank for rank, kind in answers.items() if kind is not NoteKind.RESULT}
    assert {2, 3} <= lost < set(range(18))
    simulated.kind = ""
    number = simulated.cast()
    simulated.run()
    assert set(simulated.sender.answers[number].values()) == {NoteKind.RESULT}
