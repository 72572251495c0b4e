from __future__ import annotations

import io

import pytest

from monarch_hpc.cli.output import Console, TextTable, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpu03", "gpu03"),
        ("a b — ü", "a b — ü"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp", "\\u202egnp"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_line_breaks_may_be_kept() -> None:
    assert plain("a\nb\r", lines=True) == "a\nb\\r"


TABLE = TextTable(["NAME", "HOSTS"], [["demo", "4"], ["a\x1b[31m", "n[1-2]"]])


def test_a_table_without_a_terminal_is_aligned_plain_text() -> None:
    stdout = io.StringIO()
    Console(stdout, io.StringIO(), colour=False).show({}, TABLE)
    assert stdout.getvalue() == "NAME       HOSTS\ndemo       4\na\\x1b[31m  n[1-2]\n"


def test_a_table_on_a_terminal_shows_the_same_words_and_reads_no_markup() -> None:
    stdout = io.StringIO()
    Console(stdout, io.StringIO(), colour=True).show({}, TextTable(["NAME"], [["[bold]x[/bold]"], ["a\x1b[31m"]]))
    shown = stdout.getvalue()
    assert "[bold]x[/bold]" in shown
    assert "a\\x1b[31m" in shown


def test_a_table_without_rows_still_has_its_heading() -> None:
    stdout = io.StringIO()
    Console(stdout, io.StringIO(), colour=False).show({}, TextTable(["NAME", "STATE"], []))
    assert stdout.getvalue() == "NAME  STATE\n"
