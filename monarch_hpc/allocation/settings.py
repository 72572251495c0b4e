"""`config.json`: the effective configuration of an allocation, stored for its agents and programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.config import Config, as_document
from monarch_hpc.config.schema import from_document
from monarch_hpc.core.errors import ConfigError

__all__ = ["name_of", "read_config", "write_config", "write_sent_config"]

_CONFIG = "config.json"


def write_config(directory: Path, config: Config, name: str = "", *, durable: bool = True) -> None:
    """Write the effective configuration for agents, which may see neither the user's files nor the environment.

    Args:
        name: by which users know the allocation; empty for that of its directory.
        durable: see `core.storage.files.write_private`.
    """
    write_sent_config(directory, as_document(config), name, durable=durable)


def write_sent_config(directory: Path, config: Mapping[str, object], name: str = "", *, durable: bool = True) -> None:
    """Write a configuration that another host sent as plain data; `read_config` checks it."""
    write_document(directory / _CONFIG, {"config": config, "name": name}, durable=durable)


def name_of(directory: Path) -> str:
    """The name by which users know the allocation in *directory*, for messages; that of the directory if it is gone."""
    try:
        return read_document(directory / _CONFIG).text("name") or directory.name
    except (OSError, ConfigError):
        return directory.name


def read_config(directory: Path) -> Config:
    """Read the configuration that was written; the shipped defaults if there is none.

    Raises:
        ConfigError: a key is missing or of the wrong type.
    """
    path = directory / _CONFIG
    try:
        document = read_document(path)
    except FileNotFoundError:
        # A late import: it loads YAML, which agents do not need.
        from monarch_hpc.config.load import load_config

        return load_config({"HOME": "/"}, Path("/"), "", None, {}).config
    return from_document(Config, document.document("config").fields, str(path))
