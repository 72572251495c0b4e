"""The declarations of abi.h match UCX's own headers, in the oldest and the newest version available."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.guards.tree import ROOT
from tests.ucx.installed import SYSTEM_HEADERS, WHEEL_HEADERS

pytestmark = [
    pytest.mark.ucx,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev"),
]

FOLDER = ROOT / "monarch_hpc" / "transport" / "ucx"
CHECK = ROOT / "tests" / "ucx" / "abi_check.c"
HEADERS = [
    pytest.param(
        folder,
        id=name,
        marks=pytest.mark.skipif(not (folder / "ucp/api/ucp.h").is_file(), reason=f"needs UCX's headers: {package}"),
    )
    for name, folder, package in (
        ("system", SYSTEM_HEADERS, "apt-get install libucx-dev"),
        ("wheel", WHEEL_HEADERS, "pip install libucx-cu12"),
    )
]


def compile_check(headers: Path, ours: Path) -> str:
    """Compile abi_check.c, and return the compiler's errors."""
    command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{ours}", f"-I{headers}", str(CHECK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr


@pytest.mark.parametrize("headers", HEADERS)
def test_our_header_is_ucxs(headers: Path) -> None:
    assert compile_check(headers, FOLDER) == ""


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("MH_ERR_BUSY = -15", "MH_ERR_BUSY = -14"),
        ("typedef int8_t mh_status_t", "typedef int mh_status_t"),
        ("int event_fd;", "long event_fd;"),
        ("size_t header_length, const void *buffer", "unsigned header_length, const void *buffer"),
        ("(void *arg, mh_ep_h ep, mh_status_t status)", "(mh_ep_h ep, void *arg, mh_status_t status)"),
    ],
    ids=["constant", "size", "offset", "function", "callback"],
)
def test_a_wrong_declaration_is_found(headers: Path, right: str, wrong: str, tmp_path: Path) -> None:
    text = (FOLDER / "abi.h").read_text()
    assert right in text
    (tmp_path / "abi.h").write_text(text.replace(right, wrong))
    assert "static assertion failed" in compile_check(headers, tmp_path)


def test_the_check_names_all_that_the_header_declares() -> None:
    """A new constant or field needs a line in abi_check.c; functions and callbacks are compared as a whole."""
    ours, check = (FOLDER / "abi.h").read_text(), CHECK.read_text()
    code = re.sub(r"/\*.*?\*/", "", ours, flags=re.DOTALL)
    constants = set(re.findall(r"\bMH_(\w+) = ", code))
    checked = set(re.findall(r"^UC[PS]\((\w+)\)", check, flags=re.MULTILINE))
    assert constants - checked == set()
    for body, name in re.findall(r"typedef struct mh_\w+ \{(.*?)\n\} mh_(\w+);", code, flags=re.DOTALL):
        # A field's name: the last word before `;`, or the name of a function pointer; fields of unions are skipped.
        outer = re.sub(r"\{.*?\}", "", body, flags=re.DOTALL)
        fields = {
            pointer or plain for pointer, plain in re.findall(r"(?:\(\*(\w+)\)[^;]*|(\w+)(?:\[[^;]*\])?);", outer)
        }
        assert fields, name
        for field in fields:
            assert re.search(rf"FIELD\({name}, {field}\)|{name}, {field}\)", check), f"{name}.{field}"
