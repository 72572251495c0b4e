"""Configuration: the schema, the layers of files, variables and calls, and the origin of each value.

Exports `configure` and `configured` of `monarch.config`.

Names are loaded on first use: a program starts the agent of an embedded allocation before it needs the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.config.channel_transport import ChannelTransport
    from monarch_hpc.config.runtime_layer import clear_runtime_config, configure, configured, get_runtime_config
    from monarch_hpc.config.schema import Config, FlagValue, as_document

_HOMES = {
    "ChannelTransport": "config.channel_transport",
    "Config": "config.schema",
    "FlagValue": "config.schema",
    "as_document": "config.schema",
    "clear_runtime_config": "config.runtime_layer",
    "configure": "config.runtime_layer",
    "configured": "config.runtime_layer",
    "get_runtime_config": "config.runtime_layer",
}

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

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
