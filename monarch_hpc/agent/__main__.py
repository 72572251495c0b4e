"""`python -m monarch_hpc.agent`: runs one agent; the batch script's step starts it with the key on standard input."""

from __future__ import annotations

import os
import sys

from monarch_hpc.core.process.imports import uncollected

if __name__ == "__main__":
    with uncollected():
        from monarch_hpc.agent.process import main
    sys.exit(main(sys.argv[1:], dict(os.environ)))
