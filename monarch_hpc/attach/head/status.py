"""The status report of a head."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from monarch_hpc.attach.head.client import HeadClient, ask
from monarch_hpc.wire.control.allocation import Status, StatusReport
from monarch_hpc.wire.control.message import Message

__all__ = ["HeadStatus", "ask_status", "query_status"]


class HeadStatus(TypedDict):
    """A head's `StatusReport`, with the fabric of the link to it and the reason: `transport.api.Channel.fabric`."""

    hosts: list[dict[str, object]]
    runs: list[dict[str, object]]
    kept: list[dict[str, object]]
    idle_left_s: float
    link: str
    link_why: str


def query_status(head: Path | HeadClient, timeout_s: float) -> HeadStatus | None:
    """Request the status report of a head, see `ask`; None if it cannot be reached in time."""
    return ask_status(head, Status(), timeout_s)


def ask_status(head: Path | HeadClient, question: Message, timeout_s: float) -> HeadStatus | None:
    """Send a head any message that it answers with its status report; None as `query_status`."""
    answer, link, why = ask(head, question, StatusReport, timeout_s)
    if not isinstance(answer, StatusReport):
        return None
    return HeadStatus(
        hosts=answer.hosts,
        runs=answer.runs,
        kept=answer.kept,
        idle_left_s=answer.idle_left_s,
        link=link,
        link_why=why,
    )
