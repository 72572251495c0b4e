"""Errors of channels."""

from __future__ import annotations

from monarch_hpc.core.errors.root import MonarchError

__all__ = [
    "FAREWELL",
    "NO_MEMORY",
    "AuthenticationError",
    "ChannelClosed",
    "EngineFailed",
    "FrameError",
    "MemoryAccessError",
    "PeerLost",
    "TransportError",
    "VersionMismatch",
]


FAREWELL = "it left: "
"""Begins the reason of the loss of a peer that closed the channel itself."""

NO_MEMORY = "this process has no memory left to read what it sent"
"""Why a channel is over whose next frame could not be read or handled; those behind it rely on it."""


class TransportError(MonarchError):
    """Base of the errors of channels."""

    exit_code = 74

    def for_later_calls(self, peer: str) -> TransportError:
        """Return what calls raise on the channel to *peer* that this error has ended."""
        return self.with_traceback(None)


class ChannelClosed(TransportError):
    """This side closed the channel.

    Args:
        peer: the other end, as ``role host``.
        reason: why this side closed.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"the channel to {self.peer} was closed here: {self.reason}"


class PeerLost(TransportError):
    """The other end of a channel, or the wire to it, is gone.

    Raised by every pending and later call on the channel. If this side closed it, the call raises
    `ChannelClosed` instead. `__cause__` holds the transport's own error.
    """

    retryable = True

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"lost {self.peer}: {self.reason}"

    @property
    def farewell(self) -> bool:
        """Whether the other end has said that it leaves, and why."""
        return self.reason.startswith(FAREWELL)


class EngineFailed(TransportError):
    """This process cannot communicate any more; everything that waits for another process raises this.

    `__cause__` holds the error that ended its I/O.

    Args:
        problem: that error, in words.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"this process cannot communicate any more: {self.problem}. Something in it has closed "
            "descriptors that it had not opened (os.closerange), set too low a recursion limit, or replaced functions "
            "of the standard library: start the program again without that"
        )


class FrameError(TransportError):
    """Bytes that are not a frame of this protocol.

    Args:
        problem: which field is wrong and its value.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"not a valid frame: {self.problem}"

    def for_later_calls(self, peer: str) -> TransportError:
        """Return the loss of *peer*: a `FrameError` of theirs would mean that their own frame is at fault."""
        return PeerLost(peer, str(self))


class MemoryAccessError(TransportError):
    """Registered memory of another process cannot be read or written as asked; the channel stays open.

    Args:
        where: the other process, as ``role host``.
        problem: the rule that was broken.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"no access to memory of {self.where}: {self.problem}"


class AuthenticationError(TransportError):
    """The other side could not prove that it holds the allocation's key."""

    exit_code = 77

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(peer, problem)
        self.peer = peer
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.peer} is not part of this allocation: {self.problem}"


class VersionMismatch(TransportError):
    """The two sides of a channel run incompatible versions.

    Args:
        what: ``Python``, ``monarch_hpc``, ``the protocol`` or ``the processor``.
        here: version on this side, with the path of the interpreter.
        there: version on the other side, with its host.
    """

    exit_code = 76

    def __init__(self, what: str, here: str, there: str) -> None:
        super().__init__(what, here, there)
        self.what = what
        self.here = here
        self.there = there

    def __str__(self) -> str:
        if self.what == "the processor":
            cure = "attach from a machine like the hosts, or start the program inside a job on them"
        else:
            cure = (
                "use one environment on both sides (config key 'agent.python'), then release the allocation and take "
                "it again"
            )
        return f"{self.what} differs: {self.here} here, {self.there} there; {cure}"
