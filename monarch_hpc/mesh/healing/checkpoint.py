"""Checkpoints: the states of all actors of a mesh of procs, in the program's memory or in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.ownership import OwnedMesh, Recipe
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.arguments import check_path
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.errors.joined import join_failures
from monarch_hpc.core.storage.files import private_dir, read_json, write_json
from monarch_hpc.core.text.description import class_name
from monarch_hpc.mesh.door import block, door_of
from monarch_hpc.mesh.healing.revive import hidden_endpoint

__all__ = ["take_checkpoint"]

_LAST = "checkpoint.json"
_PREFIX = "checkpoint-"


def take_checkpoint(
    runtime: Runtime,
    name: str,
    mesh: int,
    ranks: Sequence[int],
    procs: Mapping[int, ProcRef],
    folder: str | os.PathLike[str] | None,
) -> int:
    """See `ProcMesh.checkpoint`.

    Args:
        name: name of the mesh of procs, for errors.
        mesh: its number.
        ranks: those of the procs whose actors are asked.
        procs: its current procs.
    """
    if not mesh or not door_of(runtime).is_program:
        raise RuntimeError("only the program can take checkpoints, of procs that it has started")
    where = None if folder is None else Path(check_path("folder", folder)).absolute()
    chosen = set(ranks)
    asked: list[tuple[OwnedMesh, Recipe, list[int]]] = []
    for owned, recipe in runtime.ownership.made_in(mesh):
        if hasattr(recipe.cls, "__checkpoint__"):
            if not hasattr(recipe.cls, "__restore__"):
                raise TypeError(
                    f"{class_name(recipe.cls)} has __checkpoint__, but no __restore__ to take the state back"
                )
            here = [rank for rank in recipe.region.base_ranks() if rank in chosen and rank not in recipe.stopped]
            asked.append((owned, recipe, here))
    number, place = (0, None) if where is None else _begin(where)
    answers: dict[tuple[int, int], Any] = {}
    paths: dict[tuple[int, int], str] = {}
    for index, (owned, _, here) in enumerate(asked):
        for rank in here:
            path = "" if place is None else str(place / f"{index}-{rank}.state")
            paths[index, rank] = path
            endpoint = hidden_endpoint(owned.name, owned.actor, procs[rank], "_monarch_checkpoint")
            answers[index, rank] = endpoint.options(on_error="collect").call(path)
    states: dict[tuple[int, int], bytes | str] = {}
    failures: dict[int, BaseException] = {}
    for (index, rank), answer in answers.items():
        found = block(runtime, answer)
        failed = found.failures()
        if failed:
            failures.setdefault(rank, next(iter(failed.values())))
        else:
            states[index, rank] = paths[index, rank] or found.get(0)
    if failures:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)  # all have answered; on a full disk, the next one needs the room
        raise join_failures(f"{name}.__checkpoint__", failures)
    if where is not None:
        write_json(where / _LAST, {"checkpoint": number, "actors": {owned.name: here for owned, _, here in asked}})
    for index, (_, recipe, here) in enumerate(asked):
        recipe.states = {**recipe.states, **{rank: states[index, rank] for rank in here}}
    if where is not None:
        _remove_unused(where, number, runtime.ownership.state_files())
    return len(states)


def _begin(folder: Path) -> tuple[int, Path]:
    """The number of the next checkpoint in *folder*, and a private folder for it."""
    private_dir(folder)
    try:
        last = read_json(folder / _LAST)
    except FileNotFoundError:
        last = {"checkpoint": 0}
    number = last.get("checkpoint") if isinstance(last, dict) else None
    if type(number) is not int or number < 0:
        problem = "was not written by checkpoint(); give it another folder"
        raise ConfigError("", "", str(folder / _LAST), problem)
    place = folder / f"{_PREFIX}{number + 1}"
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)  # of a program that was killed; one of its procs may still write a file there
    return number + 1, private_dir(place)


def _remove_unused(folder: Path, number: int, used: Collection[str]) -> None:
    """Remove the checkpoints before *number* and its predecessor, but those with files that are *used*.

    A smaller mesh, or another one, may have taken the last ones. A program that was killed has perhaps left half a
    `_LAST`, under the name that `write_private` gave it.
    """
    kept = {Path(path).parent for path in used}
    for entry in folder.iterdir():
        if entry.name.startswith(f".{_LAST}."):
            entry.unlink(missing_ok=True)
        digits = entry.name.removeprefix(_PREFIX)
        if entry.name != digits and digits.isdecimal() and int(digits) < number - 1 and entry not in kept:
            shutil.rmtree(entry, ignore_errors=True)
