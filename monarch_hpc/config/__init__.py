"""Configuration: the schema, the layers of files, variables and calls, and the origin of each value.

Exports `configure` and `configured` of `monarch.config`.

`config.load` is not imported here, since it imports YAML, which agents and procs never need.
"""

from __future__ import annotations

from monarch_hpc.config.channel_transport import ChannelTransport
from monarch_hpc.config.runtime_layer import clear_runtime_config, configure, configured, get_runtime_config
from monarch_hpc.config.schema import Config, FlagValue, as_document

__all__ = [
    "ChannelTransport",
    "Config",
    "FlagValue",
    "as_document",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_runtime_config",
]
