"""Numbers that are on a device: copied beside its work, and read once the copy is there, without waiting for it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["DeviceValues"]

_MAX_PENDING = 1024
"""Numbers that are kept until the device has come to them; the oldest is dropped then, as a ring would."""


class DeviceValues:
    """Numbers whose copies are on their way, in the order in which they were given.

    No thread of its own looks after them: a question to the device from another thread spoils a graph that is being
    captured. They are looked after when the next number is recorded.

    Attributes:
        pending: whether there are any.
    """

    def __init__(self) -> None:
        self.pending: deque[tuple[Callable[[], bool], Callable[[], float], Callable[[float], None]]] = deque(
            maxlen=_MAX_PENDING
        )

    def add(self, value: Any, write: Callable[[float], None]) -> None:
        """Begin to copy a tensor of one element; *write* gets the number when it is there.

        Raises:
            TypeError: it has several elements, or its device has no such copies.
        """
        if value.numel() != 1:
            raise TypeError(f"it has {value.numel()} elements")
        torch = sys.modules.get("torch")
        if torch is None:
            raise TypeError("it is not one of torch")
        try:
            module = torch.get_device_module(value.device)
            copy = value.detach().to("cpu", non_blocking=True)
            copied = module.Event()
            copied.record(module.current_stream(value.device))
        except (AttributeError, RuntimeError) as error:
            raise TypeError(f"its device cannot copy it in the background ({error})") from error
        self.pending.append((copied.query, copy.item, write))

    def write_ready(self) -> None:
        """Write the numbers that have arrived, up to the first one that has not."""
        while self.pending:
            ready, read, write = self.pending[0]
            if not ready():
                return
            self.pending.popleft()
            write(float(read()))
