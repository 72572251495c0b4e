# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ifeq ($(origin PYTHON),undefined)
# The first interpreter that is new enough and able to make a virtual environment.
PYTHON := $(shell for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do \
    "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
    && echo "$$candidate" && break; done)
VENV := .venv
else
# Chosen by PYTHON=...: a virtual environment for each version, beside the usual one.
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
BIN := $(VENV)/bin
# Two processes for files that compute, and three for those that wait, each with a Slurm of its own; see
# tests/scheduling.py. With five, two cores stand still for a quarter of the time; with seven, the load is 15, and waits
# of tests expire.
SIDE_BY_SIDE := --numprocesses 5 --dist loadfile --no-loadscope-reorder
# What `make test` installs. EXTRA=test leaves out torch, and linters.
EXTRA := dev
# Works without any installation, and reports missing packages before pip does.
CHECK := $(PYTHON) -m monarch_hpc.testing.slurmlab check
# Prerequisites of an installation, which is repeated when one of these is newer.
SOURCES := setup.py setup.cfg pyproject.toml constraints.txt \
    $(wildcard monarch_hpc/transport/ucx/*.pyx monarch_hpc/transport/ucx/*.h monarch_hpc/telemetry/*.c)

# Missing Debian packages: the compiler of the UCX binding and the headers that it is checked against, the MPI for the
# tests of `spawn_procs(mpi=True)`, whose library has another name in each release, the library that Slurm's MPI
# plugin opens by its unversioned name, and the terminal in which a test looks at `top`.
BUILD_PACKAGES = $(shell \
    command -v $(firstword $(CC)) > /dev/null || echo gcc libc6-dev; \
    $(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
        || echo python3-dev; \
    [ -e /usr/include/ucp/api/ucp.h ] || echo libucx-dev; \
    $(PYTHON) -c 'import ctypes.util, sys; sys.exit(not ctypes.util.find_library("mpi"))' || echo openmpi-bin; \
    $(PYTHON) -c 'import ctypes; ctypes.CDLL("libpmix.so")' 2> /dev/null || echo libpmix-dev; \
    command -v tmux > /dev/null || echo tmux)

.PHONY: help demo test fresh slurm-demo rdma-lab style lint asan clean python system-packages
.NOTPARALLEL:

help:
	@echo "make demo        install, and train on real data on this machine (no Slurm needed)"
	@echo "make slurm-demo  the same on a real four-node Slurm on this machine (needs root)"
	@echo "make test        install the tests' requirements, and run all checks and tests"
	@echo "make fresh       'make demo' and 'make test' on a new Debian inside this machine (needs root; RELEASE=trixie)"
	@echo "make rdma-lab    the tests of RDMA between two virtual machines with soft-RoCE (needs root)"
	@echo "make lint        style and types only"
	@echo "make asan        the tests of the extensions, with the compiler's sanitizers"
	@echo "make clean       remove everything that these commands made"

demo: $(VENV)/installed-examples
	@$(BIN)/monarch-hpc run --local 2 examples/digits_ddp.py

test: system-packages $(VENV)/installed-$(EXTRA) $(if $(filter dev,$(EXTRA)),style)
	$(if $(filter dev,$(EXTRA)),VENV=$(VENV) .ci/tests,$(BIN)/pytest) $(SIDE_BY_SIDE)
	VENV=$(VENV) .ci/asan

style: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

slurm-demo: $(VENV)/installed-examples system-packages
	@VENV=$(VENV) examples/slurm_demo.sh

# COMMANDS="make demo" replaces README's commands, RELEASE=trixie the release of Debian.
fresh:
	@.ci/fresh

# KEEP=DIR keeps the machines' disk there for the next run; TESTS="..." replaces the tests.
rdma-lab: $(VENV)/installed-test
	@VENV=$(VENV) .ci/rdma-lab

asan: system-packages $(VENV)/installed-$(EXTRA)
	VENV=$(VENV) .ci/asan

python:
	@if [ -z '$(PYTHON)' ]; then \
	    echo "make: needs Python 3.11 or newer with venv; on Debian and Ubuntu: apt-get install python3 python3-venv" >&2; \
	    exit 1; \
	fi

# The lab's ordinary users must be able to read the environment, hence the umask.
$(VENV)/installed-%: $(SOURCES) | python
	@echo "make: installing monarch-hpc[$*] into $(VENV); the first time takes a few minutes"
	@umask 022 && { [ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); } \
	    && $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

system-packages: python
	@missing="$$(xargs <<< "$$($(CHECK) --packages) $(BUILD_PACKAGES)")"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; \
	elif [ -n "$$missing" ]; then \
	    echo "make: ask the administrator for: apt-get install --no-install-recommends $$missing"; \
	fi
	@$(CHECK) || echo "make: tests that need a Slurm on this machine (marker 'slurm') are skipped"

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f monarch_hpc/transport/ucx/_ucx.c monarch_hpc/transport/ucx/_ucx*.so
