"""Tables for notebooks: escaped, cut, and small for any mesh and any value."""

from __future__ import annotations

from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.html import html_table, short_repr
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.mesh.view import MeshView

HOSTILE = "<script>alert(1)</script>\x1b[31m\ud800&amp;"


class Broken:
    def __repr__(self) -> str:
        raise ValueError("secret")


def test_what_programs_put_into_a_cell_is_text() -> None:
    table = html_table(HOSTILE, [HOSTILE], [[HOSTILE], [None], [2]], 3)
    assert "<script>" not in table and table.count("&lt;script&gt;") == 3
    assert "<td>None</td>" in table and "more rows" not in table
    table.encode()  # as a notebook's file is written
    assert short_repr(Broken()) == "<Broken, whose repr raised ValueError>"


def test_a_hundred_thousand_ranks_and_long_values_stay_small() -> None:
    region = Region.whole(Extent(("hosts", "gpus"), (25_000, 4)))
    taken = 0

    def rows() -> object:
        nonlocal taken
        for rank in range(100_000):
            taken += 1
            yield [rank, "x" * 10_000]

    table = html_table("many", ["rank", "value"], rows(), 100_000)  # type: ignore[arg-type]  # a generator
    assert len(table) < 50_000 and taken <= 51 and "more rows" in table
    values = ValueMesh(region, ["<b>" * 1000] * 100_000)
    shown = values._repr_html_()
    assert len(shown.encode()) < 50_000 and "<b>" not in shown and "99950 more rows" in shown
    wide = html_table("wide", ["<" * 300] * 100, [["&" * 1000] * 100] * 100, 100)
    assert len(wide) < 100_000 and "60 more columns" in wide
    assert "MeshView" in MeshView(region)._repr_html_()


def test_ranks_that_failed_are_counted_and_say_where() -> None:
    region = Region.whole(Extent(("hosts",), (2,)))
    error = ValueError("bad <b>")
    shown = ValueMesh(region, [1, error], {1: error})._repr_html_()
    assert "ValueMesh({hosts: 2}), 1 failed" in shown and "ValueError(&#x27;bad &lt;b&gt;&#x27;)" in shown
