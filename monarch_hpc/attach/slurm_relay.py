"""The relay's two ends: `srun` on the login side, and `python -m monarch_hpc.attach.slurm_relay` on a host.

Some sites allow no TCP connections between login and compute nodes; the I/O of a Slurm step still passes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from monarch_hpc.attach.dial_back import BackDialer, BackListener
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.slurm.commands.argv import relay_argv, scrubbed
from monarch_hpc.slurm.commands.messages import explain_output
from monarch_hpc.transport.connect.relay import Relay
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag

__all__ = ["SlurmRelay", "main"]

_END_S = 2.0
"""Time that srun may take to end after its input, before it is killed; the step ends either way."""


class SlurmRelay:
    """A route to the hosts of a job through one of its steps; see `transport.connect.dial.Opener`.

    The step is started on first use, and holds no CPU, memory or GPU of the job.

    Args:
        job_id: the Slurm job.
        host: host that the step runs on; any host of the job reaches all others.
        python: the interpreter on that host.
        ended_file: exists once the job has ended; srun is then not started.
        component: that has the host, in a heterogeneous job; -1 in any other.
        listen_hosts: addresses of this machine that hosts may connect to, which is faster than the step's pipes; may be
            empty.
        port_range: config key `fabric.port_range`.
    """

    def __init__(
        self,
        engine: Engine,
        job_id: int,
        host: str,
        python: str,
        ended_file: Path,
        component: int = -1,
        listen_hosts: Sequence[str] = (),
        port_range: str = "",
    ) -> None:
        self._engine = engine
        command = (python, "-P", "-m", "monarch_hpc.attach.slurm_relay")
        self._argv = relay_argv(job_id, host, command, component)
        self._ended_file = ended_file
        self._process: subprocess.Popen[bytes] | None = None
        self._relay: Relay | None = None
        self._listen_hosts = listen_hosts
        self._port_range = port_range
        self._back: BackListener | None = None

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        """Return a socket connected to *address* as seen from the step's host; call on the driver.

        Raises:
            PeerLost: srun cannot be started.
        """
        if self._relay is None:
            self._start()
        assert self._relay is not None
        return self._relay.open(address, failed)

    def close(self) -> None:
        """End the step; must not be called on the driver, since it waits for srun."""
        process, relay = self._process, self._relay
        if process is None or relay is None:
            return
        closed = Flag(self._engine)

        def close() -> None:
            relay.close("this side is done")
            closed.set()

        self._engine.call_soon(close)
        closed.wait(_END_S)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            assert process.stderr is not None
            process.stderr.close()

    def _start(self) -> None:
        if self._ended_file.exists():
            raise PeerLost("the relay", "the allocation's job has ended")
        try:
            process = launch(
                self._argv,
                scrubbed(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                new_session=True,  # the terminal's Ctrl-C must reach only the user's program
            )
        except OSError as error:
            raise PeerLost("the relay", f"cannot start {self._argv[0]}: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._process = process
        # The relay closes its descriptors itself; the Popen objects would close them a second time.
        read_fd, write_fd = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdout.close()
        process.stdin.close()
        self._relay = Relay(self._engine, read_fd, write_fd, far=False, over=self._over, last_words=self._last_words)
        self._back = BackListener(self._engine, self._listen_hosts, self._port_range, self._relay.offer)
        if how := self._back.how:
            self._relay.ask_back(how)

    def _last_words(self) -> str:
        """The last line that srun wrote to stderr, with its meaning."""
        assert self._process is not None
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):
            text = os.read(self._process.stderr.fileno(), 4096).decode(errors="replace").strip()
            advice = explain_output(text)
            return text.rpartition("\n")[2] + (f"; {advice}" if advice else "")
        return ""

    def _over(self, _reason: str) -> None:
        # The next dial starts another step: a step may end before its job does.
        self._relay = None
        if self._back is not None:
            self._back.close()


def main() -> int:
    """Serve the relay's far end on standard input and output until they end."""
    # Only records may be written to standard output: prints are redirected to stderr.
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    engine = Engine()
    engine.start()
    over = Flag(engine)

    def begin() -> None:
        def reach(how: bytes) -> None:
            BackDialer(engine, how, relay.change_to)

        relay = Relay(engine, read_fd, write_fd, far=True, over=lambda _reason: over.set(), reach=reach)

    engine.call_soon(begin)
    over.wait()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
