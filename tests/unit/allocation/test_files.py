"""Files in an allocation's directory are read as they were written, and others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.allocation.files import read_key, write_host
from monarch_hpc.allocation.heads import HeadPlace, read_head, write_head
from monarch_hpc.allocation.ready import check_allocation, make_ready, read_ready, write_ready
from monarch_hpc.allocation.settings import name_of, read_config, write_config
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import private_dir, read_json, write_json, write_private
from monarch_hpc.wire.control.allocation import HostEntry

ENTRY = HostEntry(0, "n1", ["tcp://10.1.0.1:7"], 5, "3.11.7", "0.1.0", [0, 1], ["0"], 1 << 30, {"eth0": "10.1.0.1"})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return private_dir(tmp_path / "77409869")


def test_the_configuration_reaches_the_agents_as_it_is(directory: Path) -> None:
    config = load({"slurm.partition": "gpu", "procs.preload": ["torch"]}).config
    write_config(directory, config)
    assert read_config(directory) == config


def test_without_a_configuration_the_defaults_hold(directory: Path) -> None:
    assert read_config(directory).liveness == load().config.liveness


def test_messages_name_an_allocation_as_its_user_did(directory: Path) -> None:
    assert name_of(directory) == "77409869"
    write_config(directory, load().config)
    assert name_of(directory) == "77409869"
    write_config(directory, load().config, "dev")
    with pytest.raises(AllocationError, match=r"allocation 'dev': its agents are not ready yet"):
        check_allocation(directory)
    assert name_of(directory / "gone") == "gone"


def test_a_configuration_of_another_version_is_refused(directory: Path) -> None:
    write_config(directory, load().config)
    document = read_json(directory / "config.json")
    assert isinstance(document, dict)
    del document["config"]["procs"]["stop_s"]
    write_json(directory / "config.json", document)
    with pytest.raises(ConfigError, match=r"procs\.stop_s = missing"):
        read_config(directory)


def test_what_the_head_wrote_is_what_others_read(directory: Path) -> None:
    assert (read_head(directory), read_ready(directory)) == (None, None)
    head = HeadPlace(1, 0, ENTRY.addresses)
    write_head(directory, head)
    write_ready(directory, make_ready("a" * 32, 7, [ENTRY], ["n2"]))
    assert read_head(directory) == head
    ready = check_allocation(directory)
    assert ready == read_ready(directory)
    assert (ready.job_id, ready.addresses, ready.names, ready.missing) == (7, ENTRY.addresses, {0: "n1"}, ("n2",))


def test_an_allocation_without_its_heads_host_cannot_be_used(directory: Path) -> None:
    write_ready(directory, make_ready("a" * 32, None, [], ["n1", "n2"]))
    with pytest.raises(AllocationError, match=r"its head's host is missing \(missing: n1, n2\)"):
        check_allocation(directory)


def test_an_allocation_that_is_not_ready_or_gone_says_so(directory: Path) -> None:
    with pytest.raises(AllocationError, match="its agents are not ready yet"):
        check_allocation(directory)
    with pytest.raises(AllocationError, match="is gone: it has ended"):
        check_allocation(directory / "other")


@pytest.mark.parametrize("content", [[], {"schema": 1}, {"schema": 1, "allocation": 7}, {"schema": 2}])
def test_a_strange_ready_file_is_refused(directory: Path, content: object) -> None:
    write_json(directory / "ready.json", content)
    with pytest.raises(ConfigError, match="is not what this version"):
        read_ready(directory)


def test_keys(directory: Path) -> None:
    with pytest.raises(AllocationError, match="has ended or was released"):
        read_key(directory)
    write_private(directory / "key", b"short")
    with pytest.raises(ConfigError, match="holds 5 bytes"):
        read_key(directory)
    write_private(directory / "key", bytes(range(32)))
    assert read_key(directory) == bytes(range(32))
    (directory / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="open to other users"):
        read_key(directory)


def test_a_host_proves_that_it_can_write(directory: Path) -> None:
    write_host(directory, ENTRY, "nonce")
    assert read_json(directory / "hosts" / "0.json") == {
        "schema": 1,
        "rank": 0,
        "name": "n1",
        "pid": 5,
        "nonce": "nonce",
    }
