"""The agents' command and the step's flags for each kind of container, byte for byte; `BLESS=1` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_hpc.config.load import load_config
from monarch_hpc.slurm import render_script
from tests.golden.test_alloc_script import FOLDER, PLAIN

IMAGE = "/images/torch 2.sif"
KINDS: dict[str, dict[str, object]] = {
    "apptainer": {"agent.prefix": ["apptainer", "exec", "--nv", "--bind", "/scratch", IMAGE]},
    "pyxis": {
        "slurm.step_flags": {
            "container-image": "nvcr.io#nvidia/pytorch:24.10-py3",
            "container-mounts": "/scratch:/scratch",
            "no-container-entrypoint": True,
        }
    },
    "shifter": {"agent.prefix": ["shifter", "--image=docker:nersc/pytorch:24.10", "--module=gpu,nccl-plugin"]},
    "podman-hpc": {
        "agent.prefix": [
            *("podman-hpc", "run", "--rm", "--gpu", "--net=host", "--pid=host", "--ipc=host", "--env-host"),
            *("-v", "/scratch:/scratch", "pytorch:24.10"),
        ]
    },
}


def test_the_agents_start_in_the_container() -> None:
    shown = []
    for kind, settings in KINDS.items():
        flags = {"agent.python": "/opt/conda/bin/python", **settings}
        script = render_script(load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, flags).config, PLAIN)
        shown.append(f"# {kind}\n{script[script.index('flags=(') : script.index('steps=()')]}")
    golden = FOLDER / "containers.txt"
    text = "\n".join(shown)
    if os.environ.get("BLESS"):
        golden.write_text(text)
    assert text == golden.read_text()
