from __future__ import annotations

import json
from pathlib import Path

from monarch_hpc.config import as_document
from monarch_hpc.config.load import load_config


def test_a_document_is_plain_json_of_the_same_shape() -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "h", None, {"agent.interfaces": ["hsn0"]}).config
    document = as_document(config)
    assert json.loads(json.dumps(document)) == document
    assert document["site"] == "generic"
    assert document["paths"] == {
        "shared": "/home/alice/.local/share/monarch-hpc",
        "state": "/home/alice/.local/state/monarch-hpc",
    }
    agent = document["agent"]
    assert isinstance(agent, dict)
    assert agent["interfaces"] == ["hsn0"]
