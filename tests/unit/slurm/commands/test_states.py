"""Every state of Slurm has a phase, and an unknown one never counts as ended."""

from __future__ import annotations

import pytest

from monarch_hpc.slurm.commands.states import Phase, SlurmState

ENDED = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED",
}  # fmt: skip
QUEUED = {"PENDING", "EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED", "UPDATE_DB"}


def test_each_state_has_the_phase_that_slurms_manual_gives_it() -> None:
    by_phase: dict[Phase, set[str]] = {phase: set() for phase in Phase}
    for state in SlurmState:
        by_phase[state.phase].add(state.value)
    assert by_phase == {
        Phase.QUEUED: QUEUED,
        Phase.STARTING: {"CONFIGURING", "POWER_UP_NODE"},
        Phase.RUNNING: RUNNING,
        Phase.ENDING: {"COMPLETING", "STAGE_OUT"},
        Phase.ENDED: ENDED,
        Phase.UNKNOWN: {"LAUNCH_FAILED", "RECONFIG_FAIL", "UNKNOWN"},
    }


def test_only_what_has_ended_is_not_alive() -> None:
    assert {state.value for state in SlurmState if not state.phase.alive} == ENDED


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", SlurmState.RUNNING),
        ("CANCELLED by 1000", SlurmState.CANCELLED),
        ("CANCELLED+", SlurmState.CANCELLED),
        (" node_fail\n", SlurmState.NODE_FAIL),
        ("", SlurmState.UNKNOWN),
        ("TELEPORTING", SlurmState.UNKNOWN),
    ],
)
def test_a_word_is_read_as_slurm_prints_it(word: str, state: SlurmState) -> None:
    assert SlurmState.parse(word) is state


def test_the_ends_that_need_words_have_them() -> None:
    assert {state.value for state in SlurmState if state.phase is Phase.ENDED and not state.meaning} == {"REVOKED"}
