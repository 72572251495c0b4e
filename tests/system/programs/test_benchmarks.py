"""The comparison with peers runs on a machine without any of them, and reports what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

ENDS = [path for name in ("actor_ends", "seeing_ends") for path in sorted((ROOT / "benchmarks" / name).glob("*.py"))]


@pytest.mark.parametrize("path", ENDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_peer_runs_compiles(path: Path) -> None:
    """Without installed peers, no other test would notice."""
    compile(path.read_text(), path, "exec")


@pytest.mark.slow
def test_a_quick_comparison_measures_ours_and_tells_what_is_not_installed(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.actors", "--quick", "--peers", "ray", "xoscar", "--venvs", str(tmp_path)]
    # An interpreter without the package, and no interpreter at all.
    argv += ["--python", f"xoscar={sys.executable}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "ray: not installed; --install does it" in lines
    assert "xoscar: ModuleNotFoundError: No module named 'xoscar'" in lines
    for title in ("echo, p50", "256 MiB array", "call on 8, p50", "SIGKILL to error, p99"):
        (line,) = [line for line in lines if line.startswith(title + "  ")]
        assert float(line.split()[-4]) > 0, line  # ours, then asleep or a dash, and two peers
    assert not any(line.startswith("ours") for line in lines), "something of ours could not be measured"
