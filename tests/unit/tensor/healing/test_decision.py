"""Decisions which version counts, and when it is exact to repeat the last batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from monarch_hpc.tensor.healing.decision import Position, TornError, decide, obstacle_to_repeating
from monarch_hpc.tensor.stream.holdings import RankStatus


@pytest.mark.parametrize(
    ("ranks", "known", "expected"),
    [
        ([(3, 0), (3, 4), (3, 0)], 3, 3),  # nobody passed the barrier
        ([(3, 4), (4, 0), (3, 4)], 3, 4),  # one did
        ([(3, 4), (3, 4)], 4, 4),  # one did, told the program, and died
        ([(4, 5), (3, 4)], 3, 4),  # it went on to the next barrier
    ],
)
def test_the_newest_version_that_any_rank_has_reached_counts(
    ranks: list[tuple[int, int]], known: int, expected: int
) -> None:
    statuses = {rank: RankStatus(version, prepared, "") for rank, (version, prepared) in enumerate(ranks)}
    assert decide(statuses, known) == expected


@pytest.mark.parametrize(("ranks", "known"), [([(4, 0), (3, 0)], 3), ([(5, 0), (3, 4)], 3), ([(3, 0)], 4)])
def test_ranks_that_cannot_reach_it_are_an_error(ranks: list[tuple[int, int]], known: int) -> None:
    statuses = {rank: RankStatus(version, prepared, "") for rank, (version, prepared) in enumerate(ranks)}
    with pytest.raises(TornError, match="rank"):
        decide(statuses, known)


@pytest.mark.parametrize(
    ("issued", "seen", "effects", "backwards", "changes", "version", "obstacle"),
    [
        (4, 3, 0, {3: 1}, {}, 3, ""),  # the loop that reads the loss of each step
        (3, 3, 0, {3: 1}, {}, 3, ""),  # broken before its optimizer's step
        (3, 3, 0, {}, {}, 3, ""),
        (4, 3, 0, {3: 1}, {}, 4, "no value was read after it"),  # done, and the program does not know
        (4, 3, 1, {3: 1}, {}, 3, "part of an accumulation"),
        (5, 3, 0, {3: 1, 4: 1}, {}, 3, "2 steps"),
        (4, 3, 0, {3: 1, 4: 1}, {}, 3, "1 steps and what followed"),  # it had begun the next batch
        (3, 3, 0, {3: 2}, {}, 3, "2 backward passes"),
        (5, 3, 0, {3: 1, 4: 1}, {}, 4, "no value was read after it"),  # two optimizers, one step of which is done
        (3, 3, 0, {3: 1}, {3: 1}, 3, "mesh.commit"),
        (3, 3, 0, {3: 1}, {2: 1}, 3, ""),  # a change before the version is in it
    ],
)
def test_a_batch_is_repeated_only_if_that_is_all_that_was_lost(
    issued: int,
    seen: int,
    effects: int,
    backwards: dict[int, int],
    changes: dict[int, int],
    version: int,
    obstacle: str,
) -> None:
    found = obstacle_to_repeating(Position(issued, seen, effects, backwards, changes), version)
    assert obstacle in found and bool(obstacle) == bool(found)
