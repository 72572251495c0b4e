"""The extension loads the given libucp, and reports what is wrong with others."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from tests.guards.tree import ROOT
from tests.ucx.installed import LIBRARIES, NEEDS_BINDING, run_python

LOAD = """
import json, sys
from dataclasses import asdict
from monarch_hpc.transport.ucx.library import load_library
print(json.dumps(asdict(load_library(sys.argv[1]))))
"""


@pytest.mark.parametrize("path", LIBRARIES)
def test_a_named_library_is_the_one_that_is_used(path: str) -> None:
    library = json.loads(run_python(LOAD, path))
    assert library["path"] == str(Path(path).resolve())
    assert library["version"].startswith("1.")
    assert library["origin"] == "ucx.library"
    assert {"posix", "tcp"} <= set(library["transports"])
    assert library["reason"] == ""


@pytest.mark.parametrize("path", LIBRARIES)
def test_all_parts_come_from_one_folder(path: str) -> None:
    """This holds for a wheel, too, while the loader knows the system's UCX. Some builds have modules in one below."""
    mapped = run_python(LOAD + "print(*open('/proc/self/maps'), sep='')", path)
    folders = {Path(line.split()[-1]).parent for line in mapped.splitlines() if "/libuc" in line and "r-xp" in line}
    own = Path(path).resolve().parent
    assert own in {folder.resolve() for folder in folders} <= {own, own / "ucx"}


@pytest.mark.parametrize("path", LIBRARIES)
def test_what_another_brought_is_taken(path: str) -> None:
    code = "import ctypes, sys\nctypes.CDLL(sys.argv[2])\n" + LOAD
    library = json.loads(run_python(code, "", path))
    assert library["path"] == str(Path(path).resolve())
    assert library["origin"] == "already in this process"


# UCX would read this configuration from the working directory: it then has no transport, and logs to a file.
START = """
import os, sys
from monarch_hpc.transport.ucx.library import load_library
folder = os.getcwd()
os.environ.pop("UCX_TLS", None)
assert load_library(sys.argv[1]).path
from monarch_hpc.transport.ucx import _ucx
from monarch_hpc.transport.ucx.front import place
_ucx.Worker(1 << 20, place).close()
assert os.getcwd() == folder
print("started", *sorted(os.listdir()))
"""


@pytest.mark.parametrize("path", LIBRARIES)
def test_a_configuration_in_the_working_folder_is_not_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "ucx.conf").write_text(f"UCX_TLS=nonsense\nUCX_LOG_FILE={tmp_path}/written\n")
    assert run_python(START, path, cwd=tmp_path) == "started ucx.conf\n"


# Containers may filter the call; an invalid flag makes it fail, too.
@pytest.mark.parametrize("path", LIBRARIES)
def test_where_it_cannot_be_kept_from_reading_it_there_is_no_ucx(path: str, tmp_path: Path) -> None:
    forbid = "import monarch_hpc.transport.ucx.library as library\nlibrary._CLONE_FS = 1\n"
    assert json.loads(run_python(forbid + LOAD, path, cwd=tmp_path))["reason"] == ""
    (tmp_path / "ucx.conf").touch()
    reason = json.loads(run_python(forbid + LOAD, path, cwd=tmp_path))["reason"]
    assert reason.startswith(f"it would read {tmp_path}/ucx.conf, and cannot be kept from it (unshare: ")


@pytest.mark.parametrize("path", LIBRARIES)
def test_a_library_may_be_named_from_the_working_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(Path(path).parent)
    assert json.loads(run_python(LOAD, "./lib/libucp.so.0", cwd=tmp_path))["path"] == str(Path(path).resolve())


@pytest.mark.ucx
@NEEDS_BINDING
def test_a_broken_library_is_told_and_not_replaced(tmp_path: Path) -> None:
    broken = tmp_path / "libucp.so.0"
    broken.write_text("not a library")
    for path, words in (
        (tmp_path / "missing.so", "No such file"),
        (broken, "file too short"),
        (Path("libc.so.6"), "has no function ucp_get_version"),
    ):
        library = json.loads(run_python(LOAD, str(path)))
        assert library["path"] == ""
        assert words in library["reason"]
        assert str(path) in library["reason"]


@pytest.mark.ucx
@NEEDS_BINDING
def test_the_stub_names_what_the_extension_has() -> None:
    extension = importlib.import_module("monarch_hpc.transport.ucx._ucx")
    stub = ast.parse((ROOT / "monarch_hpc/transport/ucx/_ucx.pyi").read_text())
    modules = {name for name, value in vars(extension).items() if isinstance(value, ModuleType)}
    assert public(vars(extension)) - modules == declared(stub)
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = vars(getattr(extension, node.name))
            # Attributes that an exception's constructor sets are not in its class.
            assert public(members) <= declared(node)
            assert declared(node) <= public(members) or node.bases


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(scope: ast.Module | ast.ClassDef) -> set[str]:
    """Return the public names that a scope of a stub declares."""
    names = set()
    for node in scope.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return public(names)
