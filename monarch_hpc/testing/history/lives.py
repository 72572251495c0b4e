"""Histories of actors whose procs are killed and started again: several lives of one name, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from monarch_hpc.testing.history.checker import Began, Concluded, Event, Finished, Sent, Violation, decode
from monarch_hpc.testing.history.load import events_of, read_history

__all__ = ["check_last_lives", "history_of_lives"]


def history_of_lives(folder: str, killed: Sequence[str]) -> Iterator[Event]:
    """Yield the events of a folder such that the lives of an actor follow each other, each ended by its death.

    Args:
        killed: processes of the earlier lives, see `process_name`, in the order of their deaths.
    """
    paths = [events_of(folder, process) for process in killed]
    rest = sorted(set(Path(folder).glob("*.events")).difference(paths))
    for path in [*paths, *rest]:
        running: set[tuple[str, str, int]] = set()
        for event in _read(path):
            if isinstance(event, Began):
                running.add((event.actor, event.sender, event.number))
            elif isinstance(event, Finished):
                running.discard((event.actor, event.sender, event.number))
            yield event
        if path in paths:
            yield from (Finished(*key) for key in running)


def check_last_lives(folder: str, name: str, processes: Sequence[str]) -> tuple[int, list[Violation]]:
    """Check that callers got what the last lives have answered, and that no call that ended with a death reached them.

    Args:
        name: the actors are called this, followed by their rank.
        processes: those of the last lives, by rank.

    Returns:
        The number of calls that were checked, and what is wrong.
    """
    events = list(read_history(folder))
    sent = {(event.sender, event.number): event for event in events if isinstance(event, Sent)}
    ended = {(event.sender, event.number): event for event in events if isinstance(event, Concluded)}
    num_checked, found = 0, []
    for rank, process in enumerate(processes):
        life = list(_read(events_of(folder, process)))
        finished = {(event.sender, event.number) for event in life if isinstance(event, Finished)}
        for event in life:
            if not isinstance(event, Began):
                continue
            key = event.sender, event.number
            message, end = sent.get(key), ended.get(key)
            if message is None or end is None or end.cancelled or not _is_answered(message):
                continue
            outcome = end.outcomes.get(f"{name}{rank}", end.outcomes.get("*", ""))
            if "Died" in outcome or "Unknown" in outcome:
                found.append(Violation("lives", f"{key} reached a later life: {outcome}"))
            elif not message.fails and key in finished and not outcome.startswith("="):
                found.append(Violation("lives", f"{key} was answered, and its caller got {outcome!r}"))
            num_checked += 1
    return num_checked, found


def _is_answered(message: Sent) -> bool:
    return message.replies and not message.limited and not message.after


def _read(path: Path) -> Iterator[Event]:
    if path.exists():
        yield from map(decode, path.read_bytes().splitlines(keepends=True))
