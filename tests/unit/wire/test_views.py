"""Memoryviews survive serialization with format, shape and access, and carry the elements that they see only."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from monarch_hpc.wire.frames import Buffer
from monarch_hpc.wire.serializer import dumps, loads

_LARGE = 1 << 17
_SOURCES: dict[str, Any] = {
    "bytes": b"x" * _LARGE,
    "bytearray": bytearray(b"x") * _LARGE,
    "nothing": b"",
    "doubles": np.arange(_LARGE, dtype=np.float64),
    "matrix": np.arange(_LARGE).reshape(64, -1),
    "columns first": np.asfortranarray(np.arange(_LARGE).reshape(64, -1)),
    "one number": np.array(3.5),
    "no rows": np.zeros((0, 5)),
    "no columns": np.zeros((5, 0)),
    "complex": np.ones(_LARGE, np.complex64),
    "big-endian": np.arange(5, dtype=">i4"),
    "records": np.zeros(7, [("a", "i4"), ("b", "f8")]),
    "every third": np.arange(_LARGE)[::3],
    "backwards": np.arange(_LARGE, dtype=np.uint8)[::-1],
    "small": b"abc",
}


def travel(value: object) -> tuple[Any, int]:
    """Serialize *value*, move its buffers, and return what is read, and the bytes that travelled."""
    body, buffers = dumps(value)
    moved: list[Buffer] = [bytearray(buffer) for buffer in buffers]
    return loads(body, moved), len(body) + sum(map(len, moved))


@pytest.mark.parametrize("name", _SOURCES)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_view_survives(name: str, readonly: bool) -> None:
    view = memoryview(_SOURCES[name])
    view = view.toreadonly() if readonly else view
    read, num_bytes = travel((1, view))
    assert type(read[1]) is memoryview
    assert (read[1].format, read[1].shape, read[1].readonly) == (view.format, view.shape, view.readonly)
    assert read[1].tobytes() == view.tobytes()
    assert num_bytes < view.nbytes + 600


def test_a_view_is_not_copied() -> None:
    data = bytearray(_LARGE)
    body, buffers = dumps(memoryview(data)[10:])
    assert len(body) < 300
    data[10:13] = b"abc"
    arrived = bytearray(buffers[0])
    read: Any = loads(body, [arrived])
    assert read[:3] == b"abc"
    read[0] = 7
    assert arrived[0] == 7


def test_without_numpy_only_plain_formats_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    view = memoryview(bytearray(range(100)))
    read, _ = travel([view[::-3], view.cast("H")])
    assert read[0] == view[::-3] and read[1].format == "H" and read[1].tolist() == view.cast("H").tolist()
    with pytest.raises(TypeError, match="shape"):
        dumps(memoryview(b""))


def test_a_view_that_was_released_is_an_error() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(ValueError, match="released"):
        dumps(view)
