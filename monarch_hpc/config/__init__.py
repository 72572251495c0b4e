"""Configuration: the schema, the layers of files and variables, and the origin of each value.

`config.load` is not imported here, since it imports YAML, which agents and procs never need.
"""

from __future__ import annotations

from monarch_hpc.config.schema import Config, FlagValue, as_document

__all__ = ["Config", "FlagValue", "as_document"]
