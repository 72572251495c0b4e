"""Authenticates saved jobs: a job file that this user's programs did not write is rejected.

A saved job names processes to kill and a folder to remove, and a working directory may be shared with other users or
come out of an archive. So the file carries an HMAC under a key of this user, kept in the state directory.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from monarch_hpc.config.load import load
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import private_dir, read_private, write_once

__all__ = ["break_seal", "seal"]

_KEY = "job.key"
_KEY_BYTES = 32
_SEAL = "seal"


def seal(document: Mapping[str, object]) -> bytes:
    """Render *document* as JSON with a seal of this user, for `break_seal`.

    Raises:
        TypeError, ValueError: a value of *document* does not survive a round trip through JSON.
    """
    text = json.dumps(document, allow_nan=False)
    if json.loads(text) != document:
        raise TypeError("tuples, and keys that are not strings, come back from JSON as something else")
    return json.dumps({**document, _SEAL: _code(document)}, indent=1).encode() + b"\n"


def break_seal(data: bytes, source: str) -> dict[str, Any]:
    """Check the seal of *data* and return the document that `seal` rendered.

    Args:
        data: the sealed document.
        source: name of the document in errors.

    Raises:
        ConfigError: *data* is not a sealed document, was changed, or was sealed by another user.
    """
    try:
        document = json.loads(data)
        found = document.pop(_SEAL)
        genuine = hmac.compare_digest(str(found).encode(), _code(document).encode())
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        genuine = False
    if not genuine:
        problem = (
            "is not a job that your programs saved on this machine's file systems: it was changed, another program "
            "wrote it, or the key in the state directory (paths.state) has been replaced; remove it, or give "
            "another path"
        )
        raise ConfigError("", "", source, problem)
    return dict(document)


def _code(document: Mapping[str, object]) -> str:
    path = private_dir(load().config.paths.state) / _KEY
    if not path.exists():
        write_once(path, os.urandom(_KEY_BYTES))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hmac.new(read_private(path, _KEY_BYTES), text.encode(), hashlib.sha256).hexdigest()
