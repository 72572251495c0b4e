"""The allocation of the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.support.first_host import allocation, serving_commands


@pytest.fixture(scope="package")
def command_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The process that runs the commands which tests wait for."""
    with serving_commands(tmp_path_factory.mktemp("commands")):
        yield


@pytest.fixture(scope="module")
def home(command_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an allocation of two hosts, registered under the name ``dev``."""
    folder = tmp_path_factory.mktemp("programs")
    with allocation(folder):
        yield folder
