"""The smallest form of the campaigns on a lab of their own; `python -m benchmarks.campaigns` has the long ones."""

from __future__ import annotations

import pytest

from benchmarks.campaigns.__main__ import main


@pytest.mark.slow  # each opens a lab
@pytest.mark.parametrize(
    "words",
    [
        ("kills", "--count", "3"),
        ("crowd", "--count", "10"),
        ("full", "--count", "5"),
        ("silent", "--count", "1", "--minutes", "0.1"),
        ("clients", "--count", "4"),
        ("takeovers", "--count", "3"),
    ],
    ids=lambda words: words[0],
)
def test_a_small_campaign_keeps_all_promises(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(words)
    said = capsys.readouterr().out
    assert "BROKEN" not in said, said
    assert code == 0
    assert "kept    processes left: 0" in said
