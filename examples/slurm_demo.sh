#!/usr/bin/env bash
# A complete session on a real Slurm with four hosts, all on this machine, as ordinary user alice: `make slurm-demo`.
# Needs root, for the hosts' namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$PWD/${VENV:-.venv}/bin/python
lab() { "$python" -m monarch_hpc.testing.slurmlab "$1" --name slurm-demo "${@:2}"; }
alice() {
    printf '\nalice@login$ monarch-hpc %s\n' "$*"
    lab exec --user alice -- "${python%/*}/monarch-hpc" "$@"
}

"$python" -m monarch_hpc.testing.slurmlab check
# The lab goes down however this script ends, Ctrl-C included.
trap 'lab down' EXIT
lab up --hosts 4 --share "$PWD"

alice alloc demo -N 4 -t 10
alice run -a demo examples/digits_ddp.py
alice run -a demo examples/digits_ddp.py
alice status
alice release demo
