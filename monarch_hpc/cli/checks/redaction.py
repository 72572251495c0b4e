"""Removes secrets from text that others will read: values of variables, keys, and what follows words for secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

__all__ = ["redact"]

# Shorter values, such as 1, yes or /tmp, are in every text.
_LEAST_LENGTH = 5
_WORD = r"(?:token|passw(?:or)?d|passphrase|secret|credential|(?:api|access|private)[_-]?key|authorization|bearer)"
_BEHIND = re.compile(rf"(?i)([\w.-]*{_WORD}[\w.-]*)(\"?\s*[=:]\s*|\s+)(?:(?:bearer|basic)\s+)?(\"[^\"]*\"|'[^']*'|\S+)")
_IN_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@]+@")
# Keys and digests: ours has 32 bytes. Uuids are shorter.
_LONG_HEX = re.compile(r"(?<![0-9A-Za-z+/])(?=[0-9A-Za-z+/_-]*\d)[0-9A-Za-z+/_-]{40,}={0,2}(?![0-9A-Za-z+/=])")


def redact(text: str, environ: Mapping[str, str]) -> str:
    """Return *text* without secrets.

    Args:
        environ: the environment; each of its longer values is replaced by the variable's name.
    """
    # The longest first: a path below HOME must not leave a rest.
    for name, value in sorted(environ.items(), key=lambda item: -len(item[1])):
        if len(value) >= _LEAST_LENGTH:
            # In JSON quotes and line breaks are written otherwise.
            text = text.replace(value, f"${name}").replace(json.dumps(value)[1:-1], f"${name}")
    text = _IN_ADDRESS.sub(r"\1(left out)@", text)
    text = _BEHIND.sub(r"\1\2(left out)", text)
    return _LONG_HEX.sub(lambda match: match[0] if "/" in match[0] else "(left out)", text)
