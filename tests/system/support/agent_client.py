"""A controller for tests: exchanges messages with the head, and starts procs that run code of the test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from monarch_hpc.attach.attach import Attachment, attach
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role, mesh_number
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults.processes import alive
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import ProcReady, SpawnProcs
from monarch_hpc.wire.control.runs import OpenRun, RunOpened
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame

__all__ = ["ENTRY", "Client", "alive", "cookie_holders", "standin_path"]

ENTRY = "monarch_standin:main"

_STANDIN = '''
"""A proc that reports and then runs the Python code in the variable CODE."""
import os
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.procs import ProcHello

def main(start):
    scope = {"start": start, "code": 0}
    exec(os.environ.get("BEFORE", ""), scope)
    hello = ProcHello(start.mesh, start.rank, 1000 + start.rank, ["tcp://127.0.0.1:9"])
    os.write(start.hello_fd, encode(hello) + b"\\n")
    os.close(start.hello_fd)
    os.close(start.record_fd)
    exec(os.environ.get("CODE", "import time; time.sleep(600)"), scope)
    return scope["code"]
'''

_M = TypeVar("_M", bound=Message)
_WAIT_S = 60.0


def standin_path(folder: Path) -> str:
    """Write the module that test procs run and return the PYTHONPATH under which agents find it."""
    (folder / "monarch_standin.py").write_text(_STANDIN)
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def cookie_holders(directory: Path) -> list[int]:
    """Return the processes that name the allocation in *directory* in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                held = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in held:
                found.append(int(entry.name))
    return found


class Client:
    """One controller of one run; keeps every message that it receives."""

    def __init__(self, directory: Path, run: str, *, owner: bool = True) -> None:
        self.run = run
        self.messages: list[Message] = []
        self.lost: TransportError | None = None
        self._engine = Engine()
        self._engine.start()
        self.attachment: Attachment = attach(directory, Role.CONTROLLER, self, self._engine)
        self.send(OpenRun(run, "a test", "here", os.getpid(), owner))
        self.opened = self.wait(RunOpened)
        self._num_meshes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.attachment.node.close("the test is over")
        self._engine.close()

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: this client does not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Store the message."""
        self.messages.append(decode(frame.body))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Store the reason."""
        self.lost = error

    def send(self, message: Message) -> None:
        """Send *message* to the head."""
        self.attachment.send(message)

    def spawn(
        self,
        hosts: list[int],
        per_host: int = 1,
        code: str = "import time; time.sleep(600)",
        before: str = "",
        preload: list[str] | None = None,
        deadline_s: float = _WAIT_S,
        environment: dict[str, str] | None = None,
        mesh: int | None = None,
    ) -> int:
        """Order procs; return the number of their mesh: *mesh*, or this client's next one."""
        self._num_meshes += 1
        mesh = mesh_number(self.opened.member, self._num_meshes) if mesh is None else mesh
        self.send(
            SpawnProcs(
                run=self.run,
                mesh=mesh,
                hosts=hosts,
                first_rank=[index * per_host for index in range(len(hosts))],
                per_host=per_host,
                num_ranks=per_host * len(hosts),
                environment={"CODE": code, "BEFORE": before, **(environment or {})},
                preload=preload or [],
                sys_path=[],
                cwd=os.getcwd(),
                umask=0o022,
                gpu_visible="own-first",
                deadline_s=deadline_s,
            )
        )
        return mesh

    def spawn_ready(self, hosts: list[int], per_host: int = 1, code: str = "import time; time.sleep(600)") -> list[int]:
        """Order procs, wait until they are ready, and return their pids by rank."""
        return self.pids(self.spawn(hosts, per_host, code), per_host * len(hosts))

    def pids(self, mesh: int, num: int) -> list[int]:
        """Wait until the *num* procs of a mesh are ready, and return their pids by rank."""
        ready = self.wait_all(ProcReady, num, lambda message: message.mesh == mesh)
        return [message.pid for message in sorted(ready, key=lambda message: message.proc.rank)]

    def wait(self, kind: type[_M], match: Callable[[_M], bool] = lambda _message: True) -> _M:
        """Wait for the first message of a kind."""
        return self.wait_all(kind, 1, match)[0]

    def wait_all(self, kind: type[_M], num: int, match: Callable[[_M], bool] = lambda _message: True) -> list[_M]:
        """Wait for *num* messages of a kind."""

        def found() -> list[_M]:
            return [message for message in list(self.messages) if isinstance(message, kind) and match(message)]

        try:
            wait_until(f"{num} {kind.__name__}", lambda: len(found()) >= num or self.lost)
        except TimeoutError as error:
            raise AssertionError(f"{error}; messages: {self.messages}") from error
        assert len(found()) >= num, f"the channel is lost ({self.lost}); messages: {self.messages}"
        return found()

    def lines(self, mesh: int, rank: int, stream: str = "out") -> list[str]:
        """Return the lines that a proc has written so far."""
        return [
            line
            for message in list(self.messages)
            if isinstance(message, Output) and (message.mesh, message.proc.rank, message.stream) == (mesh, rank, stream)
            for line in message.lines
        ]
