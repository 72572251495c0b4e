"""Globals of users' modules are released before a proc exits; libraries keep theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from monarch_hpc.agent.procs.finalizers import release_globals


class Held:
    """Notes its end."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name, self.ended = name, ended

    def __del__(self) -> None:
        self.ended.append(self.name)


@pytest.fixture
def made() -> Iterator[list[str]]:
    """Modules of users, of a library, and one that was there before; returns the names of what has ended."""
    ended: list[str] = []
    files = {
        "users_a": "/home/a.py",
        "users_b": "/home/b.py",
        "earlier": "/home/e.py",
        "library": f"{sys.prefix}/lib/l.py",
        "centres": "/apps/torch/lib/python3.11/site-packages/l.py",
        "monarch_hpc.late": "/home/checkout/monarch_hpc/late.py",
    }
    for name, file in files.items():
        module = ModuleType(name)
        vars(module).update(__file__=file, first=Held(f"{name}.first", ended), last=Held(f"{name}.last", ended))
        sys.modules[name] = module
    yield ended
    sys.modules.pop("earlier_too", None)
    for name in files:
        del sys.modules[name]


def test_globals_of_users_modules_end_the_latest_first(made: list[str]) -> None:
    new = {"users_a", "users_b", "library", "centres", "monarch_hpc.late"}
    sys.modules["earlier_too"] = sys.modules["earlier"]  # as multiprocessing does with the main module
    release_globals([module for name, module in sys.modules.items() if name not in new and name != "earlier_too"])
    assert made == ["users_b.last", "users_b.first", "users_a.last", "users_a.first"]
    assert "earlier" in sys.modules and vars(sys.modules["users_a"])["__file__"] == "/home/a.py"
