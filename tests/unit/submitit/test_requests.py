"""The lines between clients and the service: whatever a foreign program writes is no request."""

from __future__ import annotations

import pytest

from monarch_hpc.submitit.requests import ServiceAnswer, ServiceRequest, decode_answer, decode_request


def test_lines_are_read_as_they_were_written() -> None:
    request = ServiceRequest("ab", "signal", "m1", index=3, number=12)
    assert decode_request(request.encode()) == request
    answer = ServiceAnswer("ab", 'it\'s "over"\n')
    assert decode_answer(answer.encode().encode()) == answer
    assert "\n" not in request.encode() + answer.encode()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "[1]",
        "[" * 100_000,
        '{"ticket": "a", "verb": "rm", "submission": "m"}',
        '{"ticket": "a", "verb": "cancel", "submission": 7}',
        '{"ticket": "a", "verb": "cancel", "submission": "m", "index": 1.5}',
        '{"ticket": "a", "verb": "cancel", "submission": "m", "index": true}',
        '{"verb": "cancel", "submission": "m"}',
    ],
)
def test_other_lines_are_passed_over(line: str) -> None:
    assert decode_request(line) is None
    assert decode_answer(line.encode()) is None
