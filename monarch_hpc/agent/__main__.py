"""`python -m monarch_hpc.agent`: runs one agent; the batch script's step starts it with the key on standard input."""

from __future__ import annotations

import os
import sys

from monarch_hpc.core.process.imports import uncollected

if __name__ == "__main__":
    with uncollected():
        from monarch_hpc.agent.process import main
    code = main(sys.argv[1:], dict(os.environ))
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything has been closed. To free all objects one by one, as `sys.exit` does, takes as long as a third of the
    # agent's start, and a program's end waits for it.
    os._exit(code)
