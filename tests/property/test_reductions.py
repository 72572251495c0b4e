"""Answers combined on the way: in rank order or not at all, whichever procs die or fail."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.agent.casts.reduction import Reduction
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.testing.simulated_allocation import SimulatedAllocation
from monarch_hpc.wire.casts import Note, NoteKind
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.reductions import Order, content_of, pack_order, pack_span, parse_order, span_of

_KEY = 7, 3
_BODIES = st.binary(max_size=20)
_ANSWERS = st.builds(
    Note, st.just(NoteKind.RESULT), st.just(7), st.just(3), st.integers(0, 99), _BODIES, st.lists(_BODIES).map(tuple)
)


# ---- wire format ----


@given(_BODIES, st.lists(_ANSWERS, min_size=1, max_size=5))
def test_an_order_is_read_as_it_was_written(functions: bytes, parts: list[Note]) -> None:
    parts.append(pack_span(NoteKind.PARTIAL, _KEY, (100, 120), b"some", [b"buffer"]))
    read = parse_order(pack_order(Order(*_KEY, functions, parts)))
    assert (read.origin, read.number, read.functions) == (*_KEY, functions)
    assert [dataclasses.replace(part, buffers=tuple(part.buffers)) for part in read.parts] == [
        dataclasses.replace(part, buffers=tuple(part.buffers)) for part in parts
    ]
    assert span_of(read.parts[-1]) == (100, 120) and content_of(read.parts[-1]) == b"some"


@given(st.binary(max_size=120))
def test_any_bytes_are_an_order_or_refused(data: bytes) -> None:
    try:
        parse_order(Frame(Kind.REDUCE, 1, 2, data))
    except FrameError:
        pass


# ---- one agent ----


def _result(place: int, body: bytes = b"") -> Note:
    return Note(NoteKind.RESULT, *_KEY, place, body)


def _reduction(procs: dict[int, int], *places: int, max_frame_bytes: int = 1 << 20) -> Reduction:
    reduction = Reduction(b"functions", max_frame_bytes)
    reduction.procs.update(procs)
    for place in places:
        assert reduction.add(_result(place)) == []
    return reduction


def _ordered(reduction: Reduction) -> tuple[int, list[int]]:
    order = reduction.next()
    assert order is not None and reduction.working
    return order[0], [part.place for part in parse_order(order[1]).parts]


def test_only_answers_without_a_gap_are_combined_and_in_order() -> None:
    reduction = _reduction({501: 5, 500: 4}, 9, 5, 4, 11, 10)
    assert _ordered(reduction) == (500, [4, 5])
    first = pack_span(NoteKind.PARTIAL, _KEY, (4, 6), b"45")
    assert reduction.on_combined(501, first) == []  # a proc that got no order
    assert reduction.on_combined(500, first) == []
    assert _ordered(reduction) == (500, [9, 10, 11])
    second = pack_span(NoteKind.PARTIAL, _KEY, (9, 12), b"9ab")
    reduction.on_combined(500, second)
    assert reduction.next() is None
    assert reduction.release() == [first, second]


def test_what_does_not_fit_into_a_frame_is_combined_piece_by_piece() -> None:
    reduction = Reduction(b"", 1000)
    reduction.procs[500] = 0
    for place in range(5):
        reduction.add(_result(place, bytes(300)))
    assert _ordered(reduction) == (500, [0, 1])
    reduction.on_combined(500, pack_span(NoteKind.PARTIAL, _KEY, (0, 2)))
    assert _ordered(reduction) == (500, [0, 2, 3])
    large = pack_span(NoteKind.PARTIAL, _KEY, (0, 4), bytes(990))
    reduction.on_combined(500, large)
    assert reduction.next() is None
    assert [part.place for part in reduction.release()] == [0, 4]


def test_a_proc_that_combines_something_else_is_refused() -> None:
    reduction = _reduction({500: 4}, 4, 5)
    reduction.next()
    with pytest.raises(FrameError, match="which were not ordered"):
        reduction.on_combined(500, pack_span(NoteKind.PARTIAL, _KEY, (4, 7)))


def test_a_failure_goes_up_at_once_and_empties_the_answers() -> None:
    reduction = _reduction({500: 4}, 4, 5, 8)
    failure = Note(NoteKind.FAILURE, *_KEY, 6, b"why")
    assert reduction.add(failure) == [
        failure,
        pack_span(NoteKind.VOID, _KEY, (4, 6)),
        pack_span(NoteKind.VOID, _KEY, (8, 9)),
    ]
    assert reduction.add(_result(7)) == [pack_span(NoteKind.VOID, _KEY, (7, 8))]
    assert reduction.next() is None and reduction.release() == []


def test_the_death_of_who_combines_is_a_failure_of_its_own_place() -> None:
    reduction = _reduction({500: 4, 501: 5}, 4, 5, 6)
    assert _ordered(reduction) == (500, [4, 5, 6])
    assert reduction.on_proc_gone(501, NoteKind.DIED, _KEY, "it does not matter") == []
    assert reduction.on_proc_gone(500, NoteKind.DIED, _KEY, "killed") == [
        Note(NoteKind.DIED, *_KEY, 4, b"killed"),
        pack_span(NoteKind.VOID, _KEY, (5, 7)),
    ]
    assert not reduction.working


def test_behind_a_lost_host_answers_that_came_still_count() -> None:
    reduction = _reduction({500: 4}, 4, 5)
    reduction.next()
    lost = Note(NoteKind.LOST, *_KEY, 0, b"hosts")
    assert reduction.add(lost) == [_result(4), _result(5), lost]
    assert reduction.on_combined(500, pack_span(NoteKind.PARTIAL, _KEY, (4, 6))) == []
    assert reduction.add(_result(6)) == [_result(6)]


# ---- trees ----


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(0, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_whoever_dies_the_result_is_that_of_a_fold_or_the_call_fails(
    num_hosts: int, per_host: int, fanout: int, num_deaths: int, fails: bool, chance: random.Random
) -> None:
    simulated = SimulatedAllocation(num_hosts, per_host, fanout, chance)
    whole = simulated.region
    regions: dict[int, Region] = {}
    dead: set[int] = set()
    if fails:
        simulated.procs[chance.randrange(num_hosts * per_host)].fails = True
    for step in range(8):
        low = chance.randrange(num_hosts)
        slices = [whole, whole.slice(hosts=slice(low, num_hosts)), whole.slice(hosts=slice(low, None, -1))]
        region = chance.choice(slices)
        regions[simulated.cast(region, reduced=True)] = region
        simulated.run(chance.randrange(60))
        if step % 2 and num_deaths:
            num_deaths -= 1
            host, proc = chance.randrange(num_hosts), chance.randrange(num_hosts * per_host)
            if host and host not in simulated.dead and chance.random() < 0.3:
                simulated.kill(host)
            elif proc not in dead and proc // per_host not in simulated.dead:
                dead.add(proc)
                simulated.kill_proc(proc)
    simulated.run()
    for number, region in regions.items():
        answers = simulated.sender.answers[number]
        assert simulated.sender.ended[number] == {NoteKind.LAST, NoteKind.DONE}
        assert sorted(answers) == list(range(len(region)))
        if set(answers.values()) <= {NoteKind.RESULT, NoteKind.PARTIAL}:
            assert simulated.sender.value(number) == b"".join(struct.pack(">I", rank) for rank in region.base_ranks())
        else:
            assert not set(answers.values()) <= {NoteKind.RESULT, NoteKind.PARTIAL, NoteKind.VOID}
            assert dead or simulated.dead or any(proc.fails for proc in simulated.procs)
    for rank, router in enumerate(simulated.routers):
        assert rank in simulated.dead or router.num_in_flight == 0


def test_places_of_different_hosts_in_turns_keep_their_order() -> None:
    simulated = SimulatedAllocation(5, 2, 2)
    turned = Region(Extent(("gpus", "hosts"), (2, 5)), 0, (1, 2))
    number = simulated.cast(turned, reduced=True)
    simulated.run()
    assert simulated.sender.value(number) == b"".join(struct.pack(">I", rank) for rank in turned.base_ranks())


def _added(parts: Iterable[bytes]) -> bytes:
    return struct.pack(">I", sum(struct.unpack(">I", part)[0] for part in parts))


@pytest.mark.parametrize("num_hosts", [1, 16, 17, 273, 1000])
def test_what_comes_to_the_caller_does_not_grow_with_the_mesh(num_hosts: int) -> None:
    simulated = SimulatedAllocation(num_hosts, 4, 16, combine=_added)
    for _ in range(2):
        number = simulated.cast(reduced=True)
        simulated.run()
    assert simulated.sender.frames["sent"] == 2
    assert simulated.sender.frames["received"] <= 4  # the answer, and DONE
    assert simulated.sender.received_bytes < 400
    num = num_hosts * 4
    assert simulated.sender.parts[number] == {0: struct.pack(">I", num * (num - 1) // 2)}
    assert sum(proc.num_combined for proc in simulated.procs) == 2 * num_hosts
    assert max(simulated.frames.values()) / 2 <= 16 + 4 + 1 + 2  # to agents, to its procs (one of them twice), and up
