"""Steps of copies, and addresses of buffers."""

from __future__ import annotations

import ctypes
from array import array

import pytest

from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.transport.memory.cma.steps import MAX_SPANS, STEP_BYTES, CopyStep, plan_steps


def test_neighbours_on_one_side_are_one_span() -> None:
    (step,) = plan_steps([(100, 1000, 10), (110, 5000, 20), (200, 5020, 5)])
    assert step == CopyStep(array("Q", (100, 30, 200, 5)), array("Q", (1000, 10, 5000, 25)), 35)


def test_a_long_span_takes_several_steps() -> None:
    steps = plan_steps([(0, 2**40, 2 * STEP_BYTES), (7 * STEP_BYTES, 0, 1)])
    assert [(*step.local, *step.remote, step.num_bytes) for step in steps] == [
        (0, STEP_BYTES, 2**40, STEP_BYTES, STEP_BYTES),
        (STEP_BYTES, STEP_BYTES, 2**40 + STEP_BYTES, STEP_BYTES, STEP_BYTES),
        (7 * STEP_BYTES, 1, 0, 1, 1),
    ]


@pytest.mark.parametrize("strides", [(8, 4), (4, 8), (8, 8)])
def test_no_step_has_more_spans_than_the_kernel_takes(strides: tuple[int, int]) -> None:
    steps = plan_steps((at * strides[0], at * strides[1], 4) for at in range(2 * MAX_SPANS + 1))
    assert [step.num_bytes for step in steps] == [4 * MAX_SPANS, 4 * MAX_SPANS, 4]
    assert max(len(spans) // 2 for step in steps for spans in (step.local, step.remote)) == MAX_SPANS


def test_nothing_takes_no_step() -> None:
    assert plan_steps([]) == plan_steps([(1, 2, 0)]) == []


@pytest.mark.parametrize("buffer", [b"0123456789", bytearray(b"0123456789"), array("B", b"0123456789")])
def test_an_address_is_that_of_the_first_byte(buffer: bytes) -> None:
    view = memoryview(buffer)
    assert ctypes.string_at(address_of(view), 10) == b"0123456789"
    assert address_of(view[3:]) == address_of(view) + 3
