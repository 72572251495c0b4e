"""A short run of the fuzzer, which begins with the whole corpus, so that fixed bugs stay fixed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.guards.tree import ROOT

CORPUS = ROOT / "tests" / "corpus"


@pytest.mark.slow
def test_nonsense_gives_a_value_or_a_documented_error(tmp_path: Path) -> None:
    """Run it in a separate process with limited memory."""
    argv = [sys.executable, "-m", "benchmarks.fuzz_frames", "--inputs", "1000", "--seed", "1"]
    done = subprocess.run(
        [*argv, "--crashes", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = re.findall(r"^(\d+) inputs; memory", done.stdout, re.MULTILINE)
    assert int(total) >= 1000 * len(TARGETS)


def test_each_corpus_is_of_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= {target.name for target in TARGETS}
    assert all(path.suffix == ".bin" for path in CORPUS.glob("*/*"))
