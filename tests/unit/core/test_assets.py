from __future__ import annotations

import pytest

from monarch_hpc.core.errors import InternalError
from monarch_hpc.core.storage.assets import asset


def test_files_of_the_three_folders_are_found() -> None:
    assert asset("configs", "default.yaml").read_text().startswith("# Every key")
    assert asset("configs", "sites").is_dir()
    assert asset("launchers").is_dir()
    assert asset("sbatch_templates").is_dir()


def test_a_missing_file_names_the_place_that_was_looked_at() -> None:
    with pytest.raises(InternalError, match=r"lacks launchers/nothing\.sh \(looked at /"):
        asset("launchers", "nothing.sh")
