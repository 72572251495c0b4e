"""Asks an allocation's head to let an attached client submit a job; run as ``python -m``, in place of sbatch.

A process of its own, since those that ask for jobs may be neither programs of the allocation nor connected to it, and
so that the request ends with its time limit, whatever the connection does.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

from monarch_hpc.attach.attach import attach
from monarch_hpc.attach.head.client import Asker
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.programs import UNKNOWN, JobSubmitted, SubmitJob
from monarch_hpc.wire.control.refusal import Refused

__all__ = ["main"]

_REFUSED = 1


def main(argv: list[str]) -> int:
    """Pass on a script, *argv*[1], to the head of the allocation in *argv*[0]; return sbatch's exit status.

    Without a script, return 0 if a client would take one.
    """
    script = Path(argv[1]).read_bytes() if len(argv) > 1 else b""
    order = SubmitJob(0, base64.b64encode(script).decode(), os.getcwd(), dict(os.environ))
    engine = Engine()
    asker = Asker(engine, JobSubmitted, Refused)
    engine.start()
    try:
        attachment = attach(Path(argv[0]), Role.TOOL, asker, engine)
        attachment.send(order)
        asker.over.wait(None)  # without a deadline: who has started this process ends it
        attachment.node.close("the command has ended")
    except MonarchError as error:
        print(f"the head of the allocation cannot be asked: {error}", file=sys.stderr)
        return _REFUSED
    finally:
        engine.close()
    match asker.answer:
        case JobSubmitted(status=status, output=output, errors=errors):
            sys.stdout.write(output)
            sys.stderr.write(errors)
            return status
        case Refused(problem=problem):
            print(problem, file=sys.stderr)
            return _REFUSED
    print(f"the head is gone: {asker.lost}", file=sys.stderr)
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
