"""Classes of actors are imported by several threads of a proc at once."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled

# The first thread waits, in the package, until the second one imports a module that needs the first one's.
PACKAGE = """
import importlib._bootstrap as locks, time
limit_s = time.monotonic() + 0.3
while not {"crowd.first", "crowd.second"} <= set(locks._module_locks) and time.monotonic() < limit_s:
    time.sleep(0.001)
from crowd.second import Second
"""
FIRST = """
from monarch_hpc import Actor, endpoint
class First(Actor):
    @endpoint
    def known(self): return type(self).__name__
"""
SECOND = """
from crowd.first import First
class Second(First): pass
"""


def test_actors_of_two_modules_of_a_package_are_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "crowd"
    package.mkdir()
    for name, text in (("__init__", PACKAGE), ("first", FIRST), ("second", SECOND)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    classes = [getattr(importlib.import_module(f"crowd.{name}"), name.title()) for name in ("first", "second")]
    with (
        controlled(load().config) as hosts,
        hosts.spawn_procs(bootstrap=partial(sys.path.insert, 0, str(tmp_path))) as procs,
    ):
        meshes = [procs.spawn(cls.__name__.lower(), cls) for cls in classes]
        names = [set(mesh.known.call().get(30).values()) for mesh in meshes]
    assert names == [{"First"}, {"Second"}]
