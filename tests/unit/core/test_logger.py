"""Log calls do not raise, whatever filters and handlers do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from monarch_hpc.core.logger import Logger


class _Raising(logging.Filter):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def filter(self, _record: logging.LogRecord) -> bool:
        raise self._error("no")


def test_a_record_names_the_line_that_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    Logger("some.module").warning("%d of %d", 1, 2)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("some.module", "1 of 2")
    assert Path(record.pathname).name == Path(__file__).name


def test_a_filter_that_raises_is_told_of_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = Logger("some.module")
    refusing = _Raising(ValueError)
    log.logger.addFilter(refusing)
    try:
        log.warning("lost")
    finally:
        log.logger.removeFilter(refusing)
    assert capsys.readouterr().err == "some.module: 'lost' could not be logged: ValueError: no\n"


def test_ctrl_c_is_not_held_back() -> None:
    log = Logger("some.module")
    refusing = _Raising(KeyboardInterrupt)
    log.logger.addFilter(refusing)
    try:
        with pytest.raises(KeyboardInterrupt):
            log.warning("lost")
    finally:
        log.logger.removeFilter(refusing)
