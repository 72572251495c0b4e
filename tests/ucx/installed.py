"""The UCX installations of this machine, and the reasons for skipping tests without them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

__all__ = [
    "CUDA",
    "LIBRARIES",
    "NEEDS_BINDING",
    "SHARED_MEMORY",
    "SYSTEM_HEADERS",
    "TCP",
    "WHEEL_HEADERS",
    "run_drill",
    "run_python",
]


def find_wheel() -> Path:
    spec = importlib.util.find_spec("libucx")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/missing")


WHEEL_HEADERS = find_wheel() / "include"
SYSTEM_HEADERS = Path("/usr/include")
_SYSTEM = next(Path("/usr/lib").glob("*-linux-gnu/libucp.so.0"), Path("/missing"))
_WHEEL = find_wheel() / "lib" / "libucp.so.0"

NEEDS_BINDING = pytest.mark.skipif(
    importlib.util.find_spec("monarch_hpc.transport.ucx._ucx") is None,
    reason="needs the UCX binding, which is built where there is a C compiler",
)

LIBRARIES = [
    pytest.param(
        str(path),
        id=name,
        marks=[
            pytest.mark.ucx,
            NEEDS_BINDING,
            pytest.mark.skipif(not path.exists(), reason=f"needs {package}"),
        ],
    )
    for name, path, package in (
        ("system", _SYSTEM, "a libucp: apt-get install libucx0"),
        ("wheel", _WHEEL, "a libucp: pip install libucx-cu12"),
    )
]
"""Each libucp of this machine, as a test parameter; a missing one skips the test."""


SHARED_MEMORY, TCP, CUDA = "self,posix,cma", "self,tcp", "self,posix,cma,cuda_copy,cuda_ipc"
"""Values of UCX_TLS."""


def run_python(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    """Run *code* in a separate interpreter, and return what it printed on both streams.

    Tests never load UCX into their own process, where it would stay for all later tests.
    """
    return _run(["-c", code, *arguments], 60, {}, cwd)


def run_drill(
    tls: str, libucp: str, drill: str, count: int | None = None, timeout_s: float = 60, program: str = "pair"
) -> str:
    """Run a drill of `tests.ucx.pair`, or of another *program* there, over *tls*, and return what it printed."""
    environment = {
        "UCX_TLS": tls,
        "UCX_NET_DEVICES": "lo",
        "UCX_POSIX_ERROR_HANDLING": "y",
        "UCX_LOG_LEVEL": "error",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        # So that malloc counts the objects of Python, too.
        "PYTHONMALLOC": "malloc",
    }
    return _run(
        ["-m", f"tests.ucx.{program}", libucp, drill, *([] if count is None else [str(count)])], timeout_s, environment
    )


def _run(arguments: list[str], timeout_s: float, environment: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stdout}"
    return done.stdout
