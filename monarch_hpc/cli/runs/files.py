"""Shows the output of an ended program from its run's files, which need no head."""

from __future__ import annotations

import signal
from pathlib import Path

from monarch_hpc.allocation.output_log import STREAMS, OutputReader
from monarch_hpc.allocation.programs import ProgramExit, run_folder
from monarch_hpc.cli.runs.mirror import Mirror

__all__ = ["show_files"]

_BLOCK_BYTES = 1 << 20


def show_files(directory: Path, run: str, mirror: Mirror, end: ProgramExit) -> int:
    """Write the rest of the output, from the mirror's place on, and return the program's exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C, which from here on concerns this command only.
    """
    mirror.finish(None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    reader = OutputReader(run_folder(directory, run))
    while pieces := reader.read(max(mirror.next, 0), _BLOCK_BYTES):
        for piece in pieces:
            mirror.write(piece.offset, STREAMS[piece.stream], piece.data)
    return end.exit_code
