"""A request is fitted into a reservation, or refused with the reason, before sbatch is run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.checks.reservation import Fit, Requester, find_reservation, fit_reservation
from monarch_hpc.slurm.commands.cluster import Reservation

NOON_S = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
CLASS = Reservation(
    "class",
    "2026-11-22T11:00:00",
    "2026-11-22T13:00:00",
    "ACTIVE",
    users="alice",
    accounts="",
    nodes="n[1-4]",
    num_nodes=4,
    flags="SPEC_NODES",
)
ALICE = Requester("alice", frozenset({"alice", "phys"}), None)


def fit(found: Reservation, time_min: int = 30, num_hosts: str = "2", num_free: int | None = 4) -> Fit:
    return fit_reservation(found, ALICE, time_min, num_hosts, num_free, NOON_S)


def test_what_fits_is_unchanged_and_nothing_is_said() -> None:
    assert fit(CLASS) == Fit(30, "", ())
    assert fit(CLASS, 58, "4") == Fit(58, "", ())


def test_an_unknown_reservation_is_refused_with_those_there_are() -> None:
    assert find_reservation((CLASS,), "class") is CLASS
    with pytest.raises(ConfigError, match="there are: class from 2026-11-22T11:00:00 to 2026-11-22T13:00:00"):
        find_reservation((CLASS,), "clas")
    with pytest.raises(ConfigError, match="there are no reservations"):
        find_reservation((), "class")


def test_a_time_limit_beyond_the_end_is_cut_and_that_is_said() -> None:
    found = fit(CLASS, 240)
    assert found.time_min == 58
    assert found.notes == (
        "the time limit is 58 min instead of 240: reservation class ends at 13:00, and 2 min are left for the start",
    )


def test_before_the_window_the_whole_window_counts_and_its_time_is_said() -> None:
    found = fit(replace(CLASS, start="2026-11-23T09:00:00", end="2026-11-23T10:00:00"), 60, "4", 0)
    assert (found.time_min, found.opens) == (58, "2026-11-23T09:00:00")
    assert found.notes[1] == "reservation class begins at 2026-11-23 09:00; the job waits until then"
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("2026-11-22T11:30:00", "it is over since 11:30"),
        ("2026-11-22T12:02:30", "it ends at 12:02, in 2 min 30 s: too little for a job"),
    ],
)
def test_a_window_that_is_over_is_refused(end: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fit(replace(CLASS, end=end))


def test_more_hosts_than_it_has_are_refused_and_fewer_free_ones_are_told() -> None:
    with pytest.raises(ConfigError, match="it has 4 hosts, and 5 were requested"):
        fit(CLASS, num_hosts="5")
    assert fit(CLASS, num_hosts="2-9", num_free=1).notes == (
        "1 of the 4 hosts of reservation class are free; the job waits",
    )
    assert fit(CLASS, num_free=None).notes == ()


def test_a_flexible_reservation_has_no_bounds() -> None:
    flex = replace(CLASS, flags="FLEX,SPEC_NODES", start="2027-11-22T11:00:00", end="2027-11-22T12:00:00")
    assert fit(flex, 600, "9", 0) == Fit(600, "", ())


@pytest.mark.parametrize(
    ("changes", "account", "problem"),
    [
        ({"users": "bob,carol"}, None, "it is for users bob, carol, not for alice"),
        ({"users": "bob", "groups": "phys"}, None, None),
        ({"users": "", "groups": "chem"}, None, "it is for groups chem, not for alice"),
        ({"users": "", "accounts": "art"}, "music", "it is for accounts art, not for alice with account music"),
        ({"users": "", "accounts": "art"}, "art", None),
        ({"users": "", "accounts": "art"}, None, None),
        ({"users": "bob", "accounts": "art"}, "art", None),
        ({"users": "bob", "accounts": "art"}, "x", "it is for users bob and accounts art, not for alice"),
        ({"users": "-alice"}, None, "it is closed to user alice"),
        ({"users": "-bob"}, None, None),
        ({"users": "", "accounts": "-art"}, "art", "it is closed to account art"),
        ({"users": ""}, None, None),
    ],
)
def test_a_reservation_of_others_is_refused(changes: dict[str, str], account: str | None, problem: str | None) -> None:
    found, requester = replace(CLASS, **changes), replace(ALICE, account=account)  # type: ignore[arg-type]
    if problem is None:
        assert fit_reservation(found, requester, 30, "2", None, NOON_S) == Fit(30, "", ())
    else:
        with pytest.raises(ConfigError, match=problem):
            fit_reservation(found, requester, 30, "2", None, NOON_S)
