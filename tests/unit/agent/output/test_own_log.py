"""The agent's own log: whole lines with their time, from the moment it begins until it is closed."""

from __future__ import annotations

import logging
import re

from monarch_hpc.agent.output.own_log import OwnLog


def test_records_are_written_from_its_beginning_to_its_end() -> None:
    lines: list[bytes] = []
    own, log = OwnLog(lines.append), logging.getLogger(__name__)
    log.warning("before")
    own.begin()
    own.begin()
    log.warning("lost %s", "n1")
    own.close()
    log.warning("after")
    (line,) = lines
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d lost n1\n", line)
