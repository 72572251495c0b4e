"""`python -m monarch_hpc.cli`: the command line without a `monarch-hpc` script on PATH."""

from __future__ import annotations

import sys

from monarch_hpc.core.process.imports import uncollected

if __name__ == "__main__":
    with uncollected():
        from monarch_hpc.cli.main import main
    sys.exit(main())
