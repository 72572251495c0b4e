"""`python -m monarch_hpc.agent.procs.mpi_task`: one task of an MPI mesh's step, and the parent of its proc.

Slurm starts and owns the tasks of a step, so they are not children of an agent. This process gets the proc's order
from its host's agent, forks the proc, which inherits the step's environment, and reports the proc's exit to the agent.
If the agent ends, this process kills the proc, as the kernel would kill a child of the agent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import replace

from monarch_hpc.agent.procs.zygote import resolve, run
from monarch_hpc.agent.procs.zygote_order import receive, render, versions
from monarch_hpc.agent.resources.shm_folder import find_segments
from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.wire.start import parse_order

__all__ = ["main", "peer_uid", "socket_path"]

_CONNECT_S = 60.0
"""Time that the agent may take to listen: agents receive a mesh's order at different times."""

_POLL_S = 0.01
_CREDENTIALS = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int:
    """The uid of the peer of a Unix socket, from the kernel."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def socket_path(folder: str, run: str, mesh: int) -> str:
    """The path of the socket on which an agent accepts the tasks of a mesh; at most 108 bytes, the kernel's limit."""
    return f"{folder}/mpi-{run}-{mesh:x}"


def main() -> int:
    """Run one proc; return its exit status, or 128 plus the signal."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    forbid_core_dumps()
    allocation, run_id, mesh, host_rank = sys.argv[1:]
    with _connect(allocation, int(host_rank), run_id, int(mesh)) as sock:
        sock.sendall(render({"local_rank": int(os.environ["SLURM_LOCALID"]), "versions": versions()}))
        request = receive(sock)
        if request is None:
            return 1  # the mesh was given up, or this interpreter was refused
        body, fds = request
        document = json.loads(body)
        order = parse_order(json.dumps(document["order"]))
        entry = resolve(document["entry"])
        for module in document["preload"]:
            importlib.import_module(module)
        (start,) = order.starts
        # The step may have fewer CPUs than the job, from which the shares were computed.
        start = replace(start, cpus=[cpu for cpu in start.cpus if cpu in os.sched_getaffinity(0)])
        own = os.getpid()
        pid = os.fork()
        if not pid:
            sock.detach()
            run(order, start, fds, own, entry)
        for fd in fds:
            os.close(fd)
        sock.sendall(render({"pid": pid}))
        return _watch(sock, pid)


def _connect(allocation: str, host_rank: int, run_id: str, mesh: int) -> socket.socket:
    end_s = time.monotonic() + _CONNECT_S
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        path = socket_path(find_segments(allocation, host_rank), run_id, mesh)
        try:
            sock.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            if time.monotonic() > end_s:
                raise SystemExit(f"no agent listens at {path}") from None
            time.sleep(_POLL_S)
        else:
            break
    if peer_uid(sock) != os.getuid():
        raise SystemExit(f"user {peer_uid(sock)} listens at {path}, in the place of our agent")
    return sock


def _watch(sock: socket.socket, pid: int) -> int:
    """Wait for the proc's exit and report it; if the agent ends first, kill the proc."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(sock, select.POLLIN)
    if any(fd == sock.fileno() for fd, _ in poll.poll()):
        _kill(pid)
    # WNOWAIT: the pid cannot be reused while the agent may use it.
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    exited = found.si_code == os.CLD_EXITED
    with contextlib.suppress(OSError):
        sock.sendall(render({"exited" if exited else "killed": found.si_status}))
        sock.recv(1)  # until the agent has received it
    os.waitpid(pid, 0)
    return found.si_status if exited else 128 + found.si_status


def _kill(pid: int) -> None:
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
