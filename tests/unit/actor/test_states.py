"""The states of actors as bytes and as files: whole, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch_hpc.actor.states import pack_state, restore, take, unpack_state
from monarch_hpc.core.errors import ConfigError, FrameError

_STATES = [None, {"step": 3, "name": "ä"}, bytearray(100_000), [b"x" * 50_000, "y" * 50_000], (1, [2.5])]


class Keeping:
    """Keeps a value."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __checkpoint__(self) -> object:
        return self.value

    def __restore__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize("state", _STATES, ids=lambda state: type(state).__name__)
def test_a_state_is_read_as_it_was(state: object, tmp_path: Path) -> None:
    assert unpack_state(pack_state(state)) == state
    kept, path = Keeping(None), tmp_path / "a.state"
    data: Any = take(Keeping(state), "")
    restore(kept, data)
    assert kept.value == state
    kept.value = 0
    assert take(Keeping(state), str(path)) == b""
    assert path.stat().st_mode & 0o777 == 0o600
    restore(kept, str(path))
    assert kept.value == state


def test_a_state_does_not_change_after_it_was_taken() -> None:
    value = bytearray(100_000)
    kept: Any = take(Keeping(value), "")
    value[0] = 1
    assert unpack_state(kept)[0] == 0
    first = unpack_state(kept)
    first[1] = 7  # it may be written, and other readers do not see that
    assert unpack_state(kept)[1] == 0


def test_parts_of_a_state_are_refused() -> None:
    whole = pack_state({"a": bytearray(5000)})
    for num in [*range(64), len(whole) // 2, len(whole) - 1]:
        with pytest.raises(FrameError):
            unpack_state(whole[:num])
    with pytest.raises(FrameError):
        unpack_state(whole + b"x")
    with pytest.raises(FrameError):
        unpack_state(whole[:8] + b"\xff" * 8 + whole[16:])


def test_what_others_may_have_written_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    take(Keeping(1), str(path))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        restore(Keeping(0), str(path))
    assert not list(tmp_path.glob(".*"))


def test_an_actor_without_the_method_is_named() -> None:
    with pytest.raises(TypeError, match="object has no method __checkpoint__"):
        take(object(), "")
