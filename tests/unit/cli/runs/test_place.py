"""The place of a program, and lists of ranks."""

from __future__ import annotations

import click
import pytest

from monarch_hpc.cli.runs.place import Place, choose_place
from monarch_hpc.cli.runs.sources import Choice, parse_ranks


def test_the_place_is_the_users_then_the_sites_then_where_there_is_no_limit() -> None:
    assert choose_place("here", "host0", 60.0, on_slurm=True) == Place(False)
    assert choose_place("host0", "here", None, on_slurm=True) == Place(True)
    assert choose_place(None, "here", 60.0, on_slurm=True) == Place(
        False, choose_place(None, "here", 1, on_slurm=True).why
    )
    assert choose_place(None, "auto", None, on_slurm=True) == Place(False)
    limited = choose_place(None, "auto", 600.0, on_slurm=True)
    assert limited.on_host and "10 min of CPU time" in limited.why
    assert choose_place(None, "host0", None, on_slurm=True).on_host
    assert choose_place(None, "host0", 60.0, on_slurm=False) == Place(False)
    with pytest.raises(click.UsageError, match="need an allocation that outlives this command"):
        choose_place("host0", "auto", None, on_slurm=False)


def test_lists_of_ranks() -> None:
    choice = Choice(parse_ranks("0-3, 7"))
    assert [rank for rank in range(10) if choice.takes_rank(rank)] == [0, 1, 2, 3, 7]
    for text in ("", "a", "3-1", "1-", "-1", "1,,2"):
        with pytest.raises(ValueError, match="not a list of ranks"):
            parse_ranks(text)
