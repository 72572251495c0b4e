"""Compiled code comes from no folder that another user may have made: torch's default has a name that all know."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.tensor.worker.training.modules import check_compile_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return Path(default_cache_dir())


def test_a_missing_folder_is_made_for_this_user(folder: Path) -> None:
    check_compile_cache()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_that_others_may_write_is_refused(folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    if named:  # as torch itself does once it has used the folder
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    with pytest.raises(ConfigError, match=r"would run code from it.*or set TORCHINDUCTOR_CACHE_DIR"):
        check_compile_cache()


def test_a_folder_that_the_user_names_is_up_to_the_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    check_compile_cache()
