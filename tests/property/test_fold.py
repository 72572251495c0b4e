"""Folding loses no output, keeps each rank's order, and delays no line for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.mesh.output.fold import Fold, OutputLine, Shown

_WINDOW_S = 1.0
_SAID = st.tuples(
    st.integers(0, 3), st.sampled_from(["out", "err"]), st.sampled_from(["a", "b", "c", ""]), st.floats(0.0, 0.4)
)


@given(st.lists(_SAID, max_size=60), st.booleans())
def test_each_rank_is_shown_as_it_spoke(lines: list[tuple[int, str, str, float]], folding: bool) -> None:
    fold = Fold(_WINDOW_S if folding else 0.0)
    spoken: dict[tuple[int, str], list[tuple[str, float]]] = {}
    received: dict[tuple[int, str], list[str]] = {}
    now_s = 0.0

    def hear(shown: list[Shown]) -> None:
        for one in shown:
            assert one.ranks
            for rank, times in one.ranks.items():
                received.setdefault((rank, one.stream), []).extend([one.text] * times)

    for rank, stream, text, later_s in lines:
        due_s = fold.due_s
        if due_s is not None and now_s + later_s >= due_s:
            now_s = max(now_s, due_s)
            hear(fold.advance(now_s))
        else:
            now_s += later_s
        spoken.setdefault((rank, stream), []).append((text, now_s))
        hear(fold.add(OutputLine(rank, "n0", stream, text), now_s))
        for who, sent in spoken.items():
            old = [text for text, at_s in sent if now_s - at_s > 2 * _WINDOW_S]
            assert len(received.get(who, [])) >= len(old), "held back for more than two windows"
    hear(fold.flush())
    assert received == {who: [text for text, _ in sent] for who, sent in spoken.items()}
    assert fold.due_s is None and fold.flush() == []
