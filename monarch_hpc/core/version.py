"""The versions of this package and of its interpreter; both sides of a channel compare them."""

from __future__ import annotations

import sys

__all__ = ["PYTHON_VERSION", "__version__"]

__version__ = "0.1.0"

PYTHON_VERSION = sys.version.split(maxsplit=1)[0].rstrip("+")
"""The result of `platform.python_version`; to import `platform` takes longer than most of this package's modules."""
