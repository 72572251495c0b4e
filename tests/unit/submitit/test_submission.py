"""The files of a submission."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.submitit.submission import (
    StateChange,
    append_states,
    read_states,
    read_submission,
    states_path,
    write_submission,
)
from tests.unit.submitit.makers import submission


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    order = submission("m1", folder=str(tmp_path / "a b" / "%j"), num_jobs=3, argv=("python 3", "-X"))
    order.place.mkdir()
    assert order.place == tmp_path / "a b"
    path = write_submission(order)
    assert read_submission(path) == order
    assert [order.job_id(index) for index in order.indices] == ["m1_0", "m1_1", "m1_2"]
    assert submission("m1").job_id(0) == "m1" and list(submission("m1").indices) == [0]
    assert [entry.name for entry in order.place.iterdir()] == [path.name]


@pytest.mark.parametrize("change", [{"num_jobs": "3"}, {"argv": "python"}, {"merged": 1}, {"id": None}])
def test_what_others_wrote_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = write_submission(submission("m1", folder=str(tmp_path)))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match="is not what this version of monarch-hpc writes"):
        read_submission(path)


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "order").write_bytes(b"\xff[[[")
    with pytest.raises(ConfigError):
        read_submission(tmp_path / "order")


def test_states_are_read_line_by_line_from_where_the_reader_was(tmp_path: Path) -> None:
    order = submission("m1", folder=str(tmp_path), num_jobs=2)
    path = states_path(tmp_path, "m1")
    assert read_states(path, 0) == ([], 0)
    first = [StateChange(0, "RUNNING", hosts=("n1", "n2")), StateChange(1, "RUNNING", hosts=("n1",))]
    append_states(order, first)
    found, offset = read_states(path, 0)
    assert found == first
    last = StateChange(0, "FAILED", "exit code 1", results=(0, 2))
    append_states(order, [last])
    with path.open("a") as file:
        file.write('not a state\n{"index": 1, "sta')  # a line of which the rest is not here yet
    assert read_states(path, offset)[0] == [last]
    assert read_states(path, read_states(path, offset)[1])[0] == []
