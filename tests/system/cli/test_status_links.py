"""The fabrics of a run's channels, as `status` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import HeadStatus, query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until

_PATIENCE_S = 60.0


def test_status_names_the_fabric_of_every_host_and_run_and_why(tmp_path: Path) -> None:
    config = load({"fabric.order": ["tcp"]}).config
    with open_local(2, config, tmp_path / "allocation") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY_VARIABLE, str(directory))

        def ask() -> HeadStatus:
            status = query_status(directory, _PATIENCE_S)
            assert status is not None
            return status

        def links() -> list[dict[str, object]]:
            (run,) = ask()["runs"]
            found = run["links"]
            assert isinstance(found, list)
            return found

        def explained(found: list[dict[str, object]]) -> bool:
            return len(found) == 2 and all(link["why"] for link in found)

        try:
            procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})
            shown = wait_until("links", links, _PATIENCE_S, accept=explained)
            assert [(link["host"], link["fabric"], link["procs"]) for link in shown] == [(0, "tcp", 2), (1, "tcp", 2)]
            status = ask()
            assert [(host["name"], host["fabric"]) for host in status["hosts"]] == [
                ("local0", "local"),
                ("local1", "tcp"),
            ]
            assert all(host["why"] for host in status["hosts"])
            assert (status["link"], bool(status["link_why"])) == ("tcp", True)
            procs.stop()
            wait_until("no links", links, _PATIENCE_S, accept=lambda found: not found)
        finally:
            Controller.instance().close()
