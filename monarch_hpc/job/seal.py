"""Seals on saved jobs: a file in a working folder that this user's programs did not write is not believed.

A saved job names processes to end and a folder to remove, and a working folder may be shared with other users or come
out of an archive. So the file carries a code that only this user's key, in the state directory, can make.
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
from monarch_hpc.core.files import private_dir, read_private, write_once

__all__ = ["break_seal", "seal"]

_KEY = "job.key"
_KEY_BYTES = 32
_SEAL = "seal"


def seal(document: Mapping[str, object]) -> bytes:
    """Render *document* as JSON that `break_seal` takes from this user.

    Raises:
        TypeError, ValueError: it has a value that JSON would not give back as it is.
    """
    text = json.dumps(document, allow_nan=False)
    if json.loads(text) != document:
        raise TypeError("tuples, and keys that are not texts, come back from JSON as something else")
    return json.dumps({**document, _SEAL: _code(document)}, indent=1).encode() + b"\n"


def break_seal(data: bytes, source: str) -> dict[str, Any]:
    """Return the document that `seal` rendered.

    Args:
        source: what errors call it.

    Raises:
        ConfigError: it is not one, was changed since, or is another user's.
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
            "wrote it, or the key in the state directory (paths.state) is another one by now; remove it, or give "
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
