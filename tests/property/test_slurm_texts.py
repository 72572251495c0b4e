"""Slurm's output is parsed correctly or refused: never partially, and never as something else."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.errors import SlurmParseError
from monarch_hpc.slurm.commands.cluster import parse_show_reservations
from monarch_hpc.slurm.commands.jobs import QueueRow, parse_job_id, parse_queue, parse_show_job
from monarch_hpc.slurm.commands.messages import advice_for, reason_in_words
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.script import quoted

WORDS = st.sampled_from([state.value for state in SlurmState if state is not SlurmState.UNKNOWN])
# What squeue prints of a reason: words, commas, host lists; spaces are underscores.
REASONS = st.from_regex(r"[A-Za-z][A-Za-z0-9,:|\[\]-]{0,40}", fullmatch=True)
LINES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=40)


@given(
    st.lists(
        st.tuples(st.integers(1, 2**31), WORDS, st.integers(1, 9999), REASONS), max_size=5, unique_by=lambda job: job[0]
    )
)
def test_rows_come_back_as_they_were_printed(jobs: list[tuple[int, str, int, str]]) -> None:
    text = "".join(
        f"{number}|mh-{number:08x}|{word}|{hosts}|n1|N/A|1:00|{reason}\n" for number, word, hosts, reason in jobs
    )
    nothing = {"None", "Unknown", "NONE"}
    assert parse_queue(text) == tuple(
        QueueRow(
            number,
            f"mh-{number:08x}",
            SlurmState(word),
            word,
            hosts,
            "n1",
            "",
            "1:00",
            "" if reason in nothing else reason,
        )
        for number, word, hosts, reason in jobs
    )


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_queue, parse_show_job, parse_job_id):
        try:
            parse(text)
        except SlurmParseError:
            pass
    parse_show_reservations(text)


@given(WORDS, LINES)
def test_nothing_after_it_changes_a_jobs_state(word: str, comment: str) -> None:
    line = f"JobId=7 JobName=mh-x JobState={word} Reason=None Comment={comment} JobState=RUNNING JobId=8 "
    detail = parse_show_job(line)
    assert (detail.job_id, detail.slurm_state, detail.reason) == (7, word, "")


@given(st.text())
def test_any_words_get_advice_or_none(text: str) -> None:
    assert isinstance(advice_for(text, {"partition": "{known}"}, ["{x}"]), str)
    assert reason_in_words(text).startswith(text)


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=60).filter(str.isprintable))
def test_a_quoted_text_opens_nothing(text: str) -> None:
    word = quoted(text)
    if word != text:
        inner = word[1:-1]
        assert not re.search(r'(?<!\\)(?:\\\\)*["$`]', inner)
        assert re.sub(r'\\(["\\$`])', r"\1", inner) == text
