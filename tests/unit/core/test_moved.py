"""An error that a moved program meets names a row that the page has."""

from __future__ import annotations

import re
from pathlib import Path

from monarch_hpc.core.text.moved import row
from tests.guards.tree import ROOT

PAGE = ROOT / "docs" / "coming-from.md"


def rows() -> set[str]:
    _, _, section = PAGE.read_text().partition("### Differences that stay\n")
    return set(re.findall(r"^\| ([^|]+?) \|", section.partition("\n#")[0], re.MULTILINE)) - {"row"}


def test_a_row_is_named() -> None:
    assert row("changed jobs") == "(docs/coming-from.md, differences that stay: changed jobs)"


def test_the_page_has_the_rows_that_errors_name() -> None:
    found = set()
    for path in Path(ROOT, "monarch_hpc").rglob("*.py"):
        found |= set(re.findall(r"row\('([^']+)'\)", path.read_text()))
    assert found == {"refused endpoints", "changed jobs"} and found <= rows()
