"""The places at which processes fail on purpose, and what arms them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch_hpc.core import failpoints
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.failpoints import arm, failpoint


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def test_a_place_fails_once_if_it_is_armed() -> None:
    failpoint("head.keep")
    arm("head.keep=raise,agent.keep@2=raise", 1)
    failpoint("agent.keep")
    with pytest.raises(RuntimeError, match=r"failpoint head\.keep: a head has taken a mesh"):
        failpoint("head.keep")
    failpoint("head.keep")
    arm("agent.keep@2=raise", 2)
    failpoint("head.keep")
    with pytest.raises(RuntimeError, match=r"agent\.keep"):
        failpoint("agent.keep")


@pytest.mark.parametrize("text", ["head", "head.keep", "head.nowhere=kill", "head.keep=sleep", "head.keep@x=kill", "="])
def test_anything_else_is_refused_with_all_names(text: str) -> None:
    with pytest.raises(ConfigError, match=r"head\.takeover") as caught:
        arm(text)
    assert text in str(caught.value) and failpoints.FAILPOINTS_VARIABLE in str(caught.value)
