"""The effective configuration of an allocation, stored for its agents and programs."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.config import Config, as_document
from monarch_hpc.config.schema import from_document
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import read_json, write_json

__all__ = ["read_config", "write_config"]

_SCHEMA = 1


def write_config(directory: Path, config: Config) -> None:
    """Write the effective configuration for agents, which may see neither the user's files nor the environment."""
    write_json(directory / "config.json", {"schema": _SCHEMA, "config": as_document(config)})


def read_config(directory: Path) -> Config:
    """Read the configuration that `write_config` wrote; the shipped defaults if there is none.

    Raises:
        ConfigError: a key is missing or of the wrong type.
    """
    path = directory / "config.json"
    try:
        document = read_json(path)
    except FileNotFoundError:
        # A late import: it loads YAML, which agents do not need.
        from monarch_hpc.config.load import load_config

        return load_config({"HOME": "/"}, Path("/"), "", None, {}).config
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise ConfigError("", "", str(path), "is not what this version of monarch-hpc writes")
    return from_document(Config, document["config"], str(path))
