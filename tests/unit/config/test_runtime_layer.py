"""Settings that a program makes by Monarch's keys change ours, and the rest is named once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.config import ChannelTransport, clear_runtime_config, configure, configured, get_runtime_config
from monarch_hpc.config.load import load, load_config
from monarch_hpc.config.runtime_layer import runtime_settings


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    clear_runtime_config()


def test_keys_with_an_equivalent_change_our_settings(tmp_path: Path) -> None:
    before = load().config
    with configured(stop_actor_timeout="1m 3s", codec_max_frame_length=4096, max_cast_fanout=8) as settings:
        assert settings == {"stop_actor_timeout": "1m 3s", "codec_max_frame_length": 4096, "max_cast_fanout": 8}
        config = load().config
        assert (config.procs.stop_s, config.transport.max_frame_bytes, config.transport.cast_fanout) == (63.0, 4096, 8)
        assert load().origin("procs.stop_s") == "configure()"
    assert load().config == before and get_runtime_config() == {}


def test_the_last_call_counts_and_a_flag_wins(tmp_path: Path) -> None:
    configure(stop_actor_timeout="1s", process_exit_timeout="2s")
    assert runtime_settings() == {"procs.stop_s": 2.0}
    configure(stop_actor_timeout="250ms")
    assert load().config.procs.stop_s == 0.25
    environ = {"HOME": str(tmp_path), "MONARCH_HPC_PROCS__STOP_S": "9"}
    for flags, wanted in ({}, 0.25), ({"procs.stop_s": 4.0}, 4.0):
        assert load_config(environ, tmp_path, "h", None, flags, runtime_settings()).config.procs.stop_s == wanted


def test_forwarding_is_switched_on_and_never_off(tmp_path: Path) -> None:
    configure(enable_log_forwarding=False)
    assert runtime_settings() == {}
    configure(enable_log_forwarding=True)
    assert runtime_settings() == {"logs.stream_to_client": True}


def test_keys_without_an_equivalent_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        configure(tail_log_lines=3, message_ttl_default=2, default_transport=ChannelTransport.TcpWithHostname)
        configure(tail_log_lines=4)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.endswith(": message_ttl_default, tail_log_lines")
    assert get_runtime_config()["tail_log_lines"] == 4


@pytest.mark.parametrize(
    ("settings", "kind", "problem"),
    [
        ({"stop_actor_timeout": 3}, TypeError, "stop_actor_timeout"),
        ({"stop_actor_timeout": "3 parsec"}, TypeError, "give a time such as '30s'"),
        ({"stop_actor_timeout": ""}, TypeError, "give a time"),
        ({"codec_max_frame_length": 0}, ValueError, "codec_max_frame_length"),
        ({"enable_log_forwarding": 1}, TypeError, "give True or False"),
        ({"default_transport": "pigeon"}, ValueError, "no transport 'pigeon'"),
        ({"default_transport": ChannelTransport.MetaTlsWithIpV6}, ValueError, "exists at Meta only"),
    ],
)
def test_values_are_checked_at_the_call(settings: dict[str, object], kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        configure(process_exit_timeout="1s", **settings)
    assert get_runtime_config() == {}
