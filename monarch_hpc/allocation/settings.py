"""`config.json`: the effective configuration of an allocation, stored for its agents and programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.config import Config, as_document
from monarch_hpc.config.schema import from_document

__all__ = ["read_config", "write_config", "write_sent_config"]

_CONFIG = "config.json"


def write_config(directory: Path, config: Config) -> None:
    """Write the effective configuration for agents, which may see neither the user's files nor the environment."""
    write_sent_config(directory, as_document(config))


def write_sent_config(directory: Path, config: Mapping[str, object]) -> None:
    """Write a configuration that another host sent as plain data; `read_config` checks it."""
    write_document(directory / _CONFIG, {"config": config}, durable=True)


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
