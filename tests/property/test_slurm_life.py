"""Allocations seen in any states and order: none moves back, and no job is cancelled or forgotten wrongly."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.allocation.files import Granted
from monarch_hpc.slurm.commands.states import Phase, SlurmState
from monarch_hpc.slurm.directory import Seen
from monarch_hpc.slurm.job import CancelJob, CloseRecord, Keep, Lifecycle, decide, decide_gone
from monarch_hpc.slurm.record import AllocationRecord, Ended
from tests.unit.slurm.makers import detail, ready, record, row

STATES = st.sampled_from(list(SlurmState))
GRANTED = Granted(7, ("n1", "n2"), "n[1-2]", 1000.0)
SEEN = st.builds(
    Seen,
    st.sampled_from([None, GRANTED, replace(GRANTED, restarts=1)]),
    st.frozensets(st.integers(0, 1)),
    st.sampled_from([None, ready(["n1"], ["n2"]), ready(["n1"])]),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 3),
)
EVENTS = st.lists(st.one_of(SEEN, STATES, st.tuples(STATES, st.integers(0, 2))), max_size=20)
RECORDS = st.builds(
    record,
    job_id=st.sampled_from([None, 7]),
    release_why=st.sampled_from(["", "unwanted"]),
    ended=st.sampled_from([None, Ended("NEVER_SUBMITTED", "", "monarch-hpc", 1.0)]),
)


@given(EVENTS)
def test_within_an_attempt_an_allocation_never_moves_back(
    events: list[Seen | SlurmState | tuple[SlurmState, int]],
) -> None:
    life = Lifecycle(30.0)
    for now_s, event in enumerate(events):
        before = life
        if isinstance(event, Seen):
            life = life.see_files(event, now_s)
        elif isinstance(event, SlurmState):
            life = life.see_queue(row(event), now_s)
        else:
            life = life.see_detail(detail(event[0], restarts=event[1]))
        assert (life.attempt, life.restarts) >= (before.attempt, before.restarts)
        if life.restarts > before.restarts or 0 < before.attempt < life.attempt:
            continue  # requeued: a new attempt
        assert life.stage >= before.stage
        assert life.num_reported >= before.num_reported
        assert before.granted is None or life.granted == before.granted


@given(RECORDS, st.none() | STATES, st.sampled_from([True, False, None]), st.floats(0, 1e6))
def test_a_job_is_cancelled_only_if_it_is_nobodys_or_unwanted(
    found: AllocationRecord, state: SlurmState | None, lives: bool | None, age_s: float
) -> None:
    listed = None if state is None else row(state)
    decision = decide(found, listed, lives, found.created_s + age_s)
    alive = listed is not None and listed.state.phase.alive
    if isinstance(decision, CancelJob):
        assert alive and listed is not None and decision.job_id == listed.job_id
        orphan = found.job_id is None and lives is not True
        assert not found.live or found.release_why or orphan
    if isinstance(decision, CloseRecord):
        # A job that squeue lists as alive is never closed, nor one that a living process is about to submit.
        assert not alive and found.job_id is None and lives is not True
    if alive and found.live and not isinstance(decision, CancelJob):
        assert decision == Keep()


@given(RECORDS, st.none() | STATES, st.none() | st.integers(0, 255))
def test_only_what_slurm_does_not_know_as_alive_is_closed(
    found: AllocationRecord, state: SlurmState | None, exit_status: int | None
) -> None:
    decision = decide_gone(found, None if state is None else detail(state), exit_status, 5000.0)
    alive = state is not None and state.phase is not Phase.ENDED
    assert isinstance(decision, CloseRecord) == (not alive)
    if isinstance(decision, CloseRecord):
        assert decision.ended.reason and decision.ended.state
