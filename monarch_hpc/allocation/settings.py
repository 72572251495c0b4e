"""The configuration that an allocation was made with, as its agents and programs find it."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.config import Config, as_document
from monarch_hpc.config.schema import from_document
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import read_json, write_json

__all__ = ["read_config", "write_config"]

_SCHEMA = 1


def write_config(directory: Path, config: Config) -> None:
    """Leave the effective configuration for the agents, which may see neither the user's files nor his environment."""
    write_json(directory / "config.json", {"schema": _SCHEMA, "config": as_document(config)})


def read_config(directory: Path) -> Config:
    """Read what `write_config` left; the shipped defaults where nothing was.

    Raises:
        ConfigError: a key is missing or of the wrong type.
    """
    path = directory / "config.json"
    try:
        document = read_json(path)
    except FileNotFoundError:
        # Only here: it brings YAML, which agents do without.
        from monarch_hpc.config.load import load_config

        return load_config({"HOME": "/"}, Path("/"), "", None, {}).config
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise ConfigError("", "", str(path), "is not what this version of monarch-hpc writes")
    return from_document(Config, document["config"], str(path))
