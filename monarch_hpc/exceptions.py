"""The errors of tensors on meshes; all others are names of `monarch_hpc` itself."""

from __future__ import annotations

from monarch_hpc.core.errors import DeviceMeshError, RemoteOpError

__all__ = ["DeviceMeshError", "RemoteOpError"]
