"""Refusals of what cannot be lent, with the line to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from monarch_hpc.rdma import RDMABuffer


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (np.zeros(0), ValueError, "no bytes"),
        (np.zeros((4, 4))[:, 1], ValueError, "ascontiguousarray"),
        (np.array([object()]), TypeError, "references"),
        # Their names do not say all: readers would get swapped bytes, or no array at all.
        (np.arange(4, dtype=">i4"), TypeError, r"elements of >i4, .* view\('uint8'\)"),
        (np.zeros(4, [("a", "i4"), ("b", "f8")]), TypeError, "not of a plain native type"),
        (np.array(["ab", "c"]), TypeError, "elements of <U2"),
        (
            np.ma.array([1, 2], mask=[False, True]),
            TypeError,
            r"is a masked array, .* pass numpy\.ma\.getdata",
        ),
        ("text", TypeError, "must be an array, a torch tensor or a buffer, not 'text', a str"),
        (b"bytes", ValueError, "read-only"),
    ],
)
def test_what_cannot_be_a_buffer_is_refused(data: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RDMABuffer(data)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda torch: torch.zeros(4, 4).t(), ValueError, "contiguous"),
        (lambda torch: torch.zeros(3, device="meta"), TypeError, "without memory"),
        (lambda torch: torch.eye(3).to_sparse(), TypeError, "to_dense"),
    ],
    ids=["transposed", "meta", "sparse"],
)
def test_a_tensor_that_cannot_be_a_buffer_is_refused(
    make: Callable[[Any], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        RDMABuffer(make(pytest.importorskip("torch")))
