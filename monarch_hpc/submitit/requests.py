"""The lines of JSON between clients and the service."""

from __future__ import annotations

import dataclasses
import json

from monarch_hpc.core.dataclass import dataclass

__all__ = ["ServiceAnswer", "ServiceRequest", "decode_answer", "decode_request"]

_VERBS = ("submit", "cancel", "signal")


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A request of a client.

    Attributes:
        ticket: names the request in its answer; random, since all clients read all answers.
        verb: submit, cancel or signal.
        submission: the submission's id.
        path: the file of its order; for submit only.
        index: the number of a job in it.
        number: the signal for its tasks.
    """

    ticket: str
    verb: str
    submission: str
    path: str = ""
    index: int = 0
    number: int = 0

    def encode(self) -> str:
        """Return it as a line, without its end."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """The answer to a request: why it was not carried out; empty if it was."""

    ticket: str
    problem: str

    def encode(self) -> str:
        """Return it as a line, without its end."""
        return json.dumps(dataclasses.asdict(self))


def decode_request(line: str | bytes) -> ServiceRequest | None:
    """Read a line of a client; None if it is not a request."""
    fields = _fields(line)
    texts = [fields.get(name, "") for name in ("ticket", "verb", "submission", "path")]
    numbers = [fields.get(name, 0) for name in ("index", "number")]
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
        return None
    if fields.get("verb") not in _VERBS or not fields.get("ticket") or not fields.get("submission"):
        return None
    return ServiceRequest(*texts, *numbers)  # type: ignore[arg-type]  # checked above


def decode_answer(line: bytes) -> ServiceAnswer | None:
    """Read a line of the service; None if it is not an answer, or not the whole of it."""
    fields = _fields(line)
    ticket, problem = fields.get("ticket"), fields.get("problem")
    return ServiceAnswer(ticket, problem) if isinstance(ticket, str) and isinstance(problem, str) else None


def _fields(line: str | bytes) -> dict[str, object]:
    try:
        parsed: object = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
