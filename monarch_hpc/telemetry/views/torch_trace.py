"""Profiles that torch's profiler has written, as part of a trace and on its clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TorchProfile", "read_profile", "torch_events"]

_Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """One profile.

    Args:
        name: that of its file.
        pid: id of the process that it is of; 0 if it does not say.
        begin_s: Unix time of the first event, by the clock of its host.
        base_s: Unix time from which its events count.
    """

    name: str
    pid: int
    begin_s: float
    base_s: float
    events: list[_Event]


def read_profile(name: str, document: object) -> TorchProfile | None:
    """Return the profile in the JSON of a file; None if it is something else.

    Profiles without ``baseTimeNanoseconds``, of old versions of torch, count from the epoch.
    """
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return None
    base = document.get("baseTimeNanoseconds", 0)
    base_s = base * 1e-9 if type(base) in (int, float) else 0.0
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    timed = [event for event in events if _is_timed(event)]
    if not timed:
        return None
    first_us = min(_number(event["ts"]) for event in timed)
    pids: dict[int, int] = {}
    for event in timed:
        pid = event.get("pid")
        if event.get("cat") in ("cpu_op", "user_annotation", "python_function", "cuda_runtime") and type(pid) is int:
            pids[pid] = pids.get(pid, 0) + 1
    pid = max(pids, key=lambda one: pids[one], default=0)
    return TorchProfile(name, pid, base_s + first_us * 1e-6, base_s, events)


def torch_events(
    profiles: Iterable[tuple[TorchProfile, float, str]], start_s: float, first_number: int
) -> Iterator[_Event]:
    """Yield the events of profiles as those of further processes of a trace.

    Args:
        profiles: each with the seconds by which the clock of its host is ahead, and the name of its process.
        start_s: Unix time from which the trace counts.
        first_number: number of the first process.
    """
    number = first_number
    for place, (profile, ahead_s, label) in enumerate(profiles):
        shift_us = (profile.base_s - ahead_s - start_s) * 1e6
        numbers: dict[Any, int] = {}
        named: set[int] = set()
        for event in profile.events:
            pid = event.get("pid", 0)
            if pid not in numbers:
                numbers[pid], number = number, number + 1
            own = {**event, "pid": numbers[pid]}
            if _is_timed(event):
                own["ts"] = round(_number(event["ts"]) + shift_us, 3)
            if "id" in event:  # of an arrow, which must not lead to another profile
                own["id"] = f"{profile.name}:{place}:{event['id']}"
            if event.get("ph") == "M" and event.get("name") == "process_name":
                named.add(numbers[pid])
                args = event.get("args")
                text = args.get("name", "") if isinstance(args, Mapping) else ""
                own["args"] = {"name": f"torch: {label} {text}".rstrip()}
            yield own
        for one in sorted(set(numbers.values()) - named):
            yield {"ph": "M", "pid": one, "tid": 0, "name": "process_name", "args": {"name": f"torch: {label}"}}


def _is_timed(event: Mapping[str, object]) -> bool:
    return event.get("ph") != "M" and type(event.get("ts")) in (int, float)


def _number(value: object) -> float:
    assert isinstance(value, int | float), "the caller has looked"
    return float(value)
