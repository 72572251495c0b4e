"""The variables and the folder that go with a program to another machine."""

from __future__ import annotations

import os

from monarch_hpc.attach.program_order import plan_order, travelling


def test_variables_of_this_machine_stay_here() -> None:
    stay = {
        **dict.fromkeys(["SLURM_JOB_ID", "SBATCH_ACCOUNT", "PMI_RANK", "SSH_AUTH_SOCK", "DISPLAY", "TMPDIR"], "x"),
        **dict.fromkeys(["XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "HOSTNAME", "MONARCH_HPC_COOKIE"], "x"),
    }
    go = {
        "PATH": "/bin",
        "HOME": "/h",
        "SLURM_CONF": "/c",
        "MONARCH_HPC_LOGS__LEVEL": "INFO",
        "TERM": "xterm",
        "A b": "",
    }
    assert travelling({**stay, **go}) == go
    order = plan_order("ab", ["x", "y z"], {**stay, **go}, (24, 80), reads=True)
    assert (order.title, order.argv, order.terminal, order.environment) == ("x y z", ["x", "y z"], [24, 80], go)
    umask = os.umask(0o027)
    try:
        assert plan_order("ab", ["x"], {}, None, reads=False).umask == 0o027
    finally:
        os.umask(umask)
