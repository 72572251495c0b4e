"""Configuration: what can be set, where it is set, and where each value came from.

`config.load` is not imported here: it brings YAML, which agents and procs never read.
"""

from __future__ import annotations

from monarch_hpc.config.schema import Config, FlagValue, as_document

__all__ = ["Config", "FlagValue", "as_document"]
