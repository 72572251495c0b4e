from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from monarch_hpc.config import Config, as_document
from monarch_hpc.config.load import load_config
from monarch_hpc.config.schema import FabricConfig, UcxConfig, from_document
from monarch_hpc.core.errors import ConfigError

FLAGS = {"fabric.interfaces.compute": ["hsn0"], "ucx.library": "/apps/libucp.so.0", "fabric.trusted": True}


@pytest.fixture
def config() -> Config:
    return load_config({"HOME": "/home/alice"}, Path("/"), "h", None, FLAGS).config


def test_a_document_is_plain_json_of_the_same_shape(config: Config) -> None:
    document = as_document(config)
    assert json.loads(json.dumps(document)) == document
    assert document["site"] == "generic"
    assert document["paths"] == {
        "shared": "/home/alice/.local/share/monarch-hpc",
        "state": "/home/alice/.local/state/monarch-hpc",
        "home_on_compute": "rw",
        "node_tmp": None,
    }
    assert document["fabric"] == {
        "order": ["cma", "ucx", "tcp", "relay"],
        "trusted": True,
        "interfaces": {"login": [], "compute": ["hsn0"]},
        "port_range": "",
        "dial_back": True,
        "spin_us": 50,
    }


def test_what_was_a_document_is_the_same_again(config: Config) -> None:
    assert from_document(Config, json.loads(json.dumps(as_document(config))), "config.json") == config
    assert from_document(FabricConfig, as_document(config.fabric), "") == config.fabric
    assert from_document(UcxConfig, as_document(config.ucx), "") == config.ucx
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("key", "value"), [("interfaces", {"login": []}), ("interfaces", [1]), ("trusted", "yes"), ("order", ["udp"])]
)
def test_a_document_of_another_version_is_refused(config: Config, key: str, value: object) -> None:
    document = {**as_document(config.fabric), key: value}
    with pytest.raises(ConfigError, match=key) as caught:
        from_document(FabricConfig, document, "config.json")
    assert caught.value.source == "config.json"
