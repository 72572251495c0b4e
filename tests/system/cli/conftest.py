"""The allocation of the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.support.first_host import allocation


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an allocation of two hosts, registered under the name ``dev``."""
    folder = tmp_path_factory.mktemp("programs")
    with allocation(folder):
        yield folder
