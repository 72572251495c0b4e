from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.config.load import load_config
from monarch_hpc.config.schema import Config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.transport.ucx.machine import Machine, read_machine
from monarch_hpc.transport.ucx.settings import check_transports, named_library, ucx_variables

BARE = Machine()
CLUSTER = Machine(rdma=("mlx5_0:1", "mlx5_1:1"), nvidia=True)
SHARED_MEMORY = "self,posix,cma"
CUDA = "cuda_copy,cuda_ipc,gdr_copy"

ALWAYS = {
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_HANDLE_ERRORS": "none",
    "UCX_VFS_ENABLE": "n",
    "UCX_LOG_FILE": "stderr",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_KEEPALIVE_INTERVAL": "2s",
}
NO_HOOKS = {"UCX_MEM_EVENTS": "n"}
"""Where nothing registers the program's memory."""

OVER_RDMA = {"UCX_UD_TIMEOUT": "1440m"}

OVER_TCP = {
    "UCX_TCP_TX_SEG_SIZE": "524288",
    "UCX_TCP_RX_SEG_SIZE": "524288",
    "UCX_TCP_USER_TIMEOUT": "10s",
    "UCX_NET_DEVICES": "hsn0,hsn1",
    "UCX_KEEPALIVE_INTERVAL": "inf",
}


def configured(*, trusted: bool = False, **ucx: object) -> Config:
    flags = {"fabric.trusted": trusted, **{f"ucx.{key}": value for key, value in ucx.items()}}
    return load_config({"HOME": "/home/alice"}, Path("/"), "h", None, flags).config


def variables(
    config: Config, environ: Mapping[str, str] | None = None, machine: Machine = BARE, *, login: bool = False
) -> dict[str, str]:
    return ucx_variables(config.fabric, config.ucx, environ or {}, machine, login=login, interfaces=["hsn0", "hsn1"])


@pytest.mark.parametrize(
    ("machine", "login", "tls"),
    [
        (BARE, False, SHARED_MEMORY),
        (BARE, True, SHARED_MEMORY),
        (CLUSTER, False, f"{SHARED_MEMORY},{CUDA},ib"),
        (CLUSTER, True, f"{SHARED_MEMORY},{CUDA}"),
        (Machine(amd=True), False, f"{SHARED_MEMORY},rocm_copy,rocm_ipc,rocm_gdr"),
    ],
)
def test_on_a_network_of_strangers_no_socket_is_opened(machine: Machine, login: bool, tls: str) -> None:
    hooks = NO_HOOKS if machine is BARE else {}
    rdma = OVER_RDMA if machine.rdma and not login else {}
    assert variables(configured(), machine=machine, login=login) == {"UCX_TLS": tls, **ALWAYS, **hooks, **rdma}


@pytest.mark.parametrize(
    ("machine", "login", "tls", "devices"),
    [
        (BARE, False, f"{SHARED_MEMORY},tcp", "hsn0,hsn1"),
        (BARE, True, f"{SHARED_MEMORY},tcp", "hsn0,hsn1"),
        (CLUSTER, False, f"{SHARED_MEMORY},{CUDA},tcp,ib", "hsn0,hsn1,mlx5_0:1,mlx5_1:1"),
        (CLUSTER, True, f"{SHARED_MEMORY},{CUDA},tcp", "hsn0,hsn1"),
    ],
)
def test_on_a_trusted_network_tcp_uses_the_chosen_interfaces(
    machine: Machine, login: bool, tls: str, devices: str
) -> None:
    expected = {"UCX_TLS": tls, **ALWAYS, **OVER_TCP, "UCX_NET_DEVICES": devices}
    if machine is BARE:
        expected |= NO_HOOKS
    if machine.rdma and not login:
        expected |= OVER_RDMA
    assert variables(configured(trusted=True), machine=machine, login=login) == expected


def test_the_configuration_says_otherwise() -> None:
    config = configured(trusted=True, transports="tcp,self", devices="eth7", port_range="31000-31999")
    assert variables(config, machine=CLUSTER) == {
        **ALWAYS,
        **NO_HOOKS,
        **OVER_TCP,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth7",
        "UCX_TCP_PORT_RANGE": "31000-31999",
    }
    config = configured(devices="mlx5_1:1", port_range="31000-31999", keepalive_s=0.5)
    expected = {"UCX_TLS": f"{SHARED_MEMORY},{CUDA},ib", **ALWAYS, **OVER_RDMA, "UCX_NET_DEVICES": "mlx5_1:1"}
    expected["UCX_KEEPALIVE_INTERVAL"] = "0.5s"
    assert variables(config, machine=CLUSTER) == expected


def test_what_the_user_has_set_stays() -> None:
    environ = {"UCX_TLS": "sm,rc,self", "UCX_LOG_LEVEL": "debug", "UCX_ERROR_SIGNALS": "SEGV", "PATH": "/bin"}
    found = variables(configured(transports="ib,self"), environ, CLUSTER)
    left = {name: value for name, value in ALWAYS.items() if name not in environ}
    assert found == {"UCX_TLS": "cma,posix,xpmem,rc,self", **left, **OVER_RDMA}


def test_buffers_of_one_size_receive_what_all_others_send() -> None:
    environ = {"UCX_TCP_RX_SEG_SIZE": "64K", "UCX_TCP_TX_SEG_SIZE": "8K"}
    found = variables(configured(trusted=True, tcp_segment_bytes=2**16), environ)
    assert found["UCX_TCP_RX_SEG_SIZE"] == "524288"
    assert "UCX_TCP_TX_SEG_SIZE" not in found


def test_a_text_without_transports_says_nothing() -> None:
    assert variables(configured(), {"UCX_TLS": " "})["UCX_TLS"] == SHARED_MEMORY


@pytest.mark.parametrize(
    ("asked", "tls"),
    [
        ("rc,ud,self", "self"),
        ("sm,rc,self", SHARED_MEMORY),
        ("posix,ib", "self,posix"),
        ("^ib,tcp", SHARED_MEMORY),
        ("^posix,tcp", "self,cma"),
        ("sysv", "self"),
    ],
)
@pytest.mark.parametrize("where", ["environment", "configuration"])
def test_a_login_process_gets_no_rdma_whoever_asks(asked: str, tls: str, where: str) -> None:
    config = configured(transports=asked if where == "configuration" else "")
    environ = {"UCX_TLS": asked} if where == "environment" else {}
    machine = Machine(rdma=CLUSTER.rdma)
    assert variables(config, environ, machine, login=True)["UCX_TLS"] == tls


@pytest.mark.parametrize("asked", ["tcp", "sm,tcp", "all", "^ib", "t*", "^TCP"])
@pytest.mark.parametrize("login", [False, True])
def test_tcp_is_refused_where_strangers_are(asked: str, login: bool) -> None:
    with pytest.raises(ConfigError, match=r"trusts its network, .*; name transports without tcp") as caught:
        variables(configured(), {"UCX_TLS": asked}, login=login)
    assert (caught.value.key, caught.value.value) == ("UCX_TLS", repr(asked))
    config = configured(trusted=True, transports=asked)
    with pytest.raises(ConfigError) as caught:
        check_transports(dataclasses.replace(config.fabric, trusted=False), config.ucx, {})
    assert caught.value.key == "ucx.transports"


def test_tcp_is_not_refused_where_it_is_trusted_or_ucx_is_not_used() -> None:
    config = configured(trusted=True)
    assert variables(config, {"UCX_TLS": "all"})["UCX_TLS"] == "^sysv,knem"
    unused = dataclasses.replace(config.fabric, trusted=False, order=("tcp", "relay"))
    check_transports(unused, config.ucx, {"UCX_TLS": "all"})


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == BARE
    for name in ("sys/class/infiniband/mlx5_1/ports/1", "sys/class/infiniband/mlx5_0/ports/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "kfd"):
        (tmp_path / "dev" / name).touch()
    assert read_machine(tmp_path) == Machine(rdma=("mlx5_0:1", "mlx5_1:1"), nvidia=True, amd=True)


def test_the_library_is_named_by_the_variable_before_the_configuration() -> None:
    config = configured(library="/apps/libucp.so.0")
    assert named_library(configured().ucx, {}) == ""
    assert named_library(config.ucx, {"MONARCH_LIBUCP": ""}) == "/apps/libucp.so.0"
    assert named_library(config.ucx, {"MONARCH_LIBUCP": "/mine/libucp.so.0"}) == "/mine/libucp.so.0"


def test_shared_memory_is_made_where_it_is_swept_up() -> None:
    config = configured()
    found = ucx_variables(config.fabric, config.ucx, {}, BARE, login=False, interfaces=[], segments="/dev/shm/a")
    assert found["UCX_POSIX_DIR"] == "/dev/shm/a"
    told = ucx_variables(
        config.fabric, config.ucx, {"UCX_POSIX_DIR": "/x"}, BARE, login=False, interfaces=[], segments="/dev/shm/a"
    )
    assert "UCX_POSIX_DIR" not in told
