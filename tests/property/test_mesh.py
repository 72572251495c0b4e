"""Meshes of hosts, procs, actors and values are sliced and reshaped like NumPy arrays, without copies."""

from __future__ import annotations

import functools
import math
import pickle
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.mesh.view import MeshView

_SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=0, max_size=3)


class Nobody(Actor):
    """An actor that is never constructed."""

    @endpoint
    def nothing(self) -> None: ...


def ref(rank: int) -> ProcRef:
    return ProcRef(1, rank, f"n{rank}", rank, 100 + rank, 1000 + rank, ())


def hosts(region: Region) -> MeshView:
    return HostMesh("", region, cast(Any, range(len(region))))


def procs(region: Region) -> MeshView:
    refs = {rank: ref(rank) for rank in range(len(region))}
    return ProcMesh("procs", 1, region, refs, cast(Any, object()))


def actors(region: Region) -> MeshView:
    return ActorMesh("nobody", 7, Nobody, region, {rank: ref(rank) for rank in range(len(region))})


def values(region: Region) -> MeshView:
    return ValueMesh(region, range(len(region)))


def elements(mesh: MeshView) -> list[int]:
    """Return the base ranks of a mesh's elements in order, for each kind of mesh."""
    match mesh:
        case HostMesh():
            return [cast(int, entry) for entry in mesh.entries]
        case ProcMesh():
            return [proc.rank for proc in mesh.procs]
        case ValueMesh():
            assert [value for _, value in mesh.items()] == list(mesh.values())
            return list(mesh.values())
        case ActorMesh():
            callee = pickle.loads(pickle.dumps(mesh))._callee  # as another process gets it
            region = callee.region
            assert sorted(callee.procs) == sorted(region.base_ranks())
            places = range(len(mesh))
            assert all(f"[{region.base_rank(p)}]" in callee.where("nothing", p) for p in places)
            return list(region.base_ranks())
    raise AssertionError(mesh)


KINDS = (hosts, procs, actors, values)


def keeps_some(size: int, chosen: slice) -> bool:
    return len(range(size)[chosen]) > 0


def some_slice(draw: st.DrawFn, mesh: MeshView, array: np.ndarray) -> tuple[MeshView, np.ndarray]:
    selection: dict[str, int | slice] = {}
    for label, size in mesh.sizes.items():
        choice = draw(st.sampled_from(["keep", "number", "slice"]))
        if choice == "number":
            selection[label] = draw(st.integers(-size, size - 1))
        elif choice == "slice":
            selection[label] = draw(st.slices(size).filter(functools.partial(keeps_some, size)))
    index = tuple(selection.get(label, slice(None)) for label in mesh.sizes)
    return mesh.slice(**selection), array[index]


def some_split(draw: st.DrawFn, mesh: MeshView, array: np.ndarray) -> tuple[MeshView, np.ndarray]:
    label = draw(st.sampled_from(list(mesh.sizes)))
    size = mesh.sizes[label]
    outer = draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
    names = (f"{label}_o", f"{label}_i")
    given_sizes = draw(
        st.sampled_from([{names[0]: outer}, {names[1]: size // outer}, {names[0]: outer, names[1]: size // outer}])
    )
    axis = list(mesh.sizes).index(label)
    shape = (*array.shape[:axis], outer, size // outer, *array.shape[axis + 1 :])
    arguments: dict[str, tuple[str, ...] | int] = {label: names, **given_sizes}
    return mesh.split(**arguments), array.reshape(shape)


def some_rename(draw: st.DrawFn, mesh: MeshView, array: np.ndarray) -> tuple[MeshView, np.ndarray]:
    labels = draw(st.lists(st.sampled_from(list(mesh.sizes)), unique=True))
    renamed = mesh.rename(**{label: f"{label}x" for label in labels})
    assert list(renamed.sizes) == [f"{label}x" if label in labels else label for label in mesh.sizes]
    return renamed, array


def some_flatten(draw: st.DrawFn, mesh: MeshView, array: np.ndarray) -> tuple[MeshView, np.ndarray]:
    """A view where NumPy returns one, a copy for values, and an error for everything else."""
    flat = array.reshape(array.size)
    name = f"flat{draw(st.integers(0, 9))}"
    if not np.shares_memory(flat, array) and not isinstance(mesh, ValueMesh):
        with pytest.raises(ValueError, match=r"left gaps in .*: flatten first"):
            mesh.flatten(name)
        return mesh, array
    return mesh.flatten(name), flat


STEPS: tuple[Callable[[st.DrawFn, MeshView, np.ndarray], tuple[MeshView, np.ndarray]], ...] = (
    some_slice,
    some_split,
    some_rename,
    some_flatten,
)


@given(st.data(), _SIZES, st.sampled_from(KINDS))
def test_a_mesh_is_what_numpy_makes_of_it(
    data: st.DataObject, sizes: list[int], kind: Callable[[Region], MeshView]
) -> None:
    mesh = kind(Region.whole(Extent.of({f"d{axis}": size for axis, size in enumerate(sizes)})))
    array = np.arange(math.prod(sizes)).reshape(sizes)
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(STEPS if mesh.sizes else STEPS[:1]))
        mesh, array = step(data.draw, mesh, array)
        assert tuple(mesh.extent.sizes) == array.shape
        assert elements(mesh) == array.ravel().tolist()
    assert len(mesh) == mesh.size() == array.size
    assert [mesh.size(label) for label in mesh.sizes] == list(array.shape)
    assert mesh.size(list(mesh.sizes)[:2]) == math.prod(array.shape[:2])
    for rank in range(len(mesh)):
        point = mesh.extent.point(rank)
        assert elements(mesh.slice(**point)) == [array[tuple(point.values())]]
        if isinstance(mesh, ValueMesh):
            assert mesh.item(**point) == array[tuple(point.values())]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": ("a", "b"), "a": 2}, "no dimension 'x'; there are: hosts, gpus"),
        ({"hosts": ("a", "b")}, "needs the sizes of all parts but one; a, b have none"),
        ({"hosts": ("a", "b"), "a": 4}, r"hosts has size 6, which 4 does not divide: a=4 x b=\? cannot be"),
        ({"hosts": ("a", "b"), "a": 2, "b": 2}, "make up 4"),
        ({"hosts": ("a", "b"), "a": 0}, "a is 0: give at least 1"),
        ({"hosts": ("a", "gpus"), "a": 2}, "repeat"),
        ({"hosts": ("a", "b"), "a": 2, "c": 2}, "c=2 is the size of no part"),
        ({"hosts": 2}, "hosts=2 is the size of no part"),
    ],
)
def test_a_split_that_makes_no_sense_says_why(arguments: dict[str, Any], words: str) -> None:
    mesh = hosts(Region.whole(Extent.of({"hosts": 6, "gpus": 2})))
    with pytest.raises((KeyError, ValueError), match=words):
        mesh.split(**arguments)


def test_sizes_are_whole_numbers_of_any_kind() -> None:
    sizes: list[Any] = [np.int64(2), "2", 2.0, None]
    assert type(Extent.of({"gpus": sizes[0]}).sizes[0]) is int
    for size in sizes[1:]:
        with pytest.raises(TypeError, match=r"the size of dimension 'gpus' is .*: give a whole number"):
            Extent.of({"gpus": size})


def test_names_stay_unique() -> None:
    mesh = hosts(Region.whole(Extent.of({"hosts": 6, "gpus": 2})))
    with pytest.raises(ValueError, match="repeat"):
        mesh.rename(hosts="gpus")
    with pytest.raises(KeyError, match="no dimension 'x'"):
        mesh.rename(x="y")
    assert mesh.rename(hosts="gpus", gpus="hosts").sizes == {"gpus": 6, "hosts": 2}
    with pytest.raises(KeyError, match="no dimension 'x'"):
        mesh.size(["hosts", "x"])


def test_failures_keep_their_places_in_every_view() -> None:
    error = KeyError("k")
    mesh = ValueMesh(Region.whole(Extent.of({"hosts": 4, "gpus": 2})), [0, 1, 2, error, 4, 5, 6, 7], {3: error})
    assert {point.rank: found for point, found in mesh.failures().items()} == {3: error}
    column = mesh.slice(gpus=1, hosts=slice(None, None, -1))
    assert {point["hosts"]: found for point, found in column.failures().items()} == {2: error}
    gaps = mesh.slice(hosts=slice(0, 2), gpus=slice(1, 2)).flatten("r")
    assert {point["r"]: found for point, found in gaps.failures().items()} == {1: error}
    assert mesh.slice(gpus=0).failures() == {}


class Untouched(Mapping[int, ProcRef]):
    """Procs that have not been read yet."""

    def __len__(self) -> int:
        raise AssertionError("counted")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("listed")

    def __getitem__(self, rank: int) -> ProcRef:
        raise AssertionError(f"looked up {rank}")


@pytest.mark.parametrize("kind", ["hosts", "procs", "actors", "values"])
def test_a_hundred_thousand_ranks_are_cut_without_looking_at_one(kind: str) -> None:
    region = Region.whole(Extent.of({"hosts": 12_500, "gpus": 8}))
    nothing = cast(Any, Untouched())
    meshes: dict[str, MeshView] = {
        "hosts": HostMesh("", region, nothing),
        "procs": ProcMesh("procs", 1, region, nothing, cast(Any, object())),
        "actors": ActorMesh("nobody", 7, Nobody, region, nothing),
        "values": ValueMesh(region, nothing),
    }
    mesh = meshes[kind]
    tracemalloc.start()
    try:
        flat = mesh.split(hosts=("racks", "hosts"), racks=125).rename(gpus="tp").flatten("rank")
        cut = flat.slice(rank=slice(1, None, 8)).split(rank=("racks", "hosts"), racks=125).slice(racks=-1)
        assert (flat.sizes, cut.sizes, len(cut)) == ({"rank": 100_000}, {"hosts": 100}, 100)
        assert cut._region.base_rank(99) == 99_993
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16_384
