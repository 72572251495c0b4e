"""`python -m monarch_hpc.cli`: the command line without a `monarch-hpc` script on PATH."""

from __future__ import annotations

import sys

from monarch_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
