"""The last text of a question, which a head has run if all hosts have answered with all that they have."""

from __future__ import annotations

import json
from dataclasses import replace

from monarch_hpc.agent.head.last_text import given_results, whole_parts, with_answer
from monarch_hpc.wire.control.questions import Portion, Rows, SqlAnswer
from monarch_hpc.wire.tables.pieces import AnswerPart, parse_part

_PARTS = [AnswerPart("AAAA", {}, [[0, 2]], [], 3), AnswerPart("BBBB", {}, [[4, 5]], [], 0)]


def _rows(*parts: AnswerPart) -> Rows:
    return Rows(7, [Portion(f"host n{place}", part.render()) for place, part in enumerate(parts)], [], [])


def test_a_part_with_rows_or_without_all_of_them_is_none_to_run_it_on() -> None:
    assert whole_parts(_rows(*_PARTS)) == _PARTS
    for other in (
        AnswerPart("", {"handled": "[]"}, [[3, 4]]),
        AnswerPart("CCCC", {}, [[3, 4]], ["host n3 (handled)"]),
        AnswerPart("CCCC", {"handled": "[]"}, [[3, 4]]),
    ):
        assert whole_parts(_rows(*_PARTS, other)) == []
    assert whole_parts(_rows()) == []
    assert whole_parts(replace(_rows(*_PARTS), missing=["host n3"])) == []
    assert whole_parts(replace(_rows(*_PARTS), left_out=["host n3"])) == []
    assert whole_parts(Rows(7, [Portion("host n0", "[]")], [], [])) == []


def test_an_engine_is_given_the_results_and_the_names_of_their_hosts() -> None:
    given = json.dumps({"plan": {}, "rows": {}, "parts": [], "kept": ["/a"], "known": {}, "since_s": 5.0})
    document = json.loads(given_results(given, _PARTS, {0: "n0", 1: "n1", 4: "n4", 9: "n9"}))
    assert document["parts"] == ["AAAA", "BBBB"]
    assert document["known"] == {"/a": {"0": "n0", "1": "n1", "4": "n4"}}
    assert (document["plan"], document["since_s"]) == ({}, 5.0)


def test_its_answer_comes_with_what_is_known_of_the_hosts_and_without_their_results() -> None:
    rows = with_answer(_rows(*_PARTS), _PARTS, SqlAnswer(1, body="{}"))
    assert (rows.ticket, rows.finished, rows.problem) == (7, "{}", "")
    parts = [parse_part(portion.rows) for portion in rows.portions]
    assert [(part.results, part.ranks, part.dropped) for part in parts] == [("", [[0, 2]], 3), ("", [[4, 5]], 0)]
    assert with_answer(_rows(*_PARTS), _PARTS, SqlAnswer(1, problem="too large")).problem == "too large"
