"""The records of the op stream: 64-bit integers, in which a cached operation takes two more than it has arguments.

A frame holds records, the templates that they use for the first time, and objects that integers cannot express. Every
record but `FREE` has a sequence number: the frame's first record has that of the frame, each further one the next.

An operation is ``template, argument..., first result``. An argument is the number of a value, an integer, or the bits
of a float. Numbers of values are never reused.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

__all__ = [
    "ALIAS",
    "BACKWARD",
    "CALL",
    "COMMIT",
    "DTYPES",
    "FIRST_TEMPLATE",
    "FREE",
    "GET_GRAD",
    "HALTED",
    "LEND",
    "NO_GRAD",
    "PUT",
    "REQUIRE_GRAD",
    "SET_DATA",
    "SET_GRAD",
    "SHARDED_CALLS",
    "CallRequest",
    "CollectiveSpec",
    "CoordinateSpec",
    "MeshSpec",
    "OpSpec",
    "Ref",
    "TransferSpec",
    "bits_of",
    "float_of",
]

FREE = 0
"""``FREE, count, value...``"""
BACKWARD = 1
"""``BACKWARD, loss, gradient or 0, retain_graph, count, leaf...``"""
GET_GRAD = 2
"""``GET_GRAD, leaf, result``"""
NO_GRAD = 3
"""``NO_GRAD, leaf``"""
SET_GRAD = 4
"""``SET_GRAD, leaf, value``"""
REQUIRE_GRAD = 5
"""``REQUIRE_GRAD, leaf, flag``"""
SET_DATA = 6
"""``SET_DATA, target, value``"""
ALIAS = 7
"""``ALIAS, value, result``"""
PUT = 8
"""``PUT, object, result``; the object is a tensor."""
CALL = 9
"""``CALL, object, first result, count, argument...``; the object is a `CallRequest`."""
LEND = 10
"""``LEND, value, token``; a copy for an actor. Tokens are numbers like those of results: they grow."""
COMMIT = 15
"""``COMMIT, version, number of the next value``; a barrier of all ranks."""
FIRST_TEMPLATE = 16

HALTED = -1
"""Stands for the operation in the report of a rank that has executed nothing, or not all."""

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
"""Types of elements by the number that stands for them in the records of collectives."""

SHARDED_CALLS = "monarch_hpc.tensor.worker.sharded.calls."
"""The module whose functions a `CallRequest` names for what is not an operation of torch."""

_FLOAT = struct.Struct("d")
_INT = struct.Struct("q")


def bits_of(number: float) -> int:
    """The bits of a float as an integer."""
    bits: int = _INT.unpack(_FLOAT.pack(number))[0]
    return bits


def float_of(bits: int) -> float:
    """The float that `bits_of` has taken apart."""
    number: float = _FLOAT.unpack(_INT.pack(bits))[0]
    return number


class OpSpec(NamedTuple):
    """A template: a function, and how a record's integers become its arguments.

    Attributes:
        name: name of the function, see `tensor.ops.names`; empty if it travels as *function*.
        function: the function itself, pickled; empty if it has a name.
        expression: the arguments as Python source over ``E`` (values), ``a`` and ``i`` (record), ``K`` and ``f``.
        constants: ``K``.
        refs: positions in the record of the arguments that are values, from 1.
        mutated: those of them that the function writes to.
        num_args: integers of the record between template and results.
        num_outs: number of results.
        is_tree: whether they are the tensors in a list or tuple, not a single tensor.
        grad: whether autograd records it.
        autocast: device types and element types of enabled autocasts.
    """

    name: str
    function: bytes
    expression: str
    constants: tuple[Any, ...]
    refs: tuple[int, ...]
    mutated: tuple[int, ...]
    num_args: int
    num_outs: int
    is_tree: bool
    grad: bool
    autocast: tuple[tuple[str, Any], ...]


class CoordinateSpec(NamedTuple):
    """The coordinate of each rank along a dimension: ``template, result``.

    Attributes:
        places: coordinates by rank in the mesh of procs.
    """

    places: dict[int, int]


class CollectiveSpec(NamedTuple):
    """A reduction over groups of ranks: ``template, value, result, is in place, type, ndim, size...``.

    Attributes:
        groups: the ranks of each group, in the order of their coordinates.
        reduction: ``sum``, ``avg``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor`` or ``stack``.
        scatter: whether each rank keeps its row only.
    """

    groups: tuple[tuple[int, ...], ...]
    reduction: str
    scatter: bool


class TransferSpec(NamedTuple):
    """Copies between ranks: ``template, value or 0, result or 0, tag, type, ndim, size...``.

    Attributes:
        pairs: source and target ranks; a source may occur several times.
    """

    pairs: tuple[tuple[int, int], ...]


class MeshSpec(NamedTuple):
    """A mesh with sharded tensors, by whose number a frame says that its tensors are.

    Attributes:
        key: identifies the engine, for the names of process groups.
        names: names of the dimensions.
        sizes: their sizes.
        ranks: ranks in the mesh of procs, row by row.
        seed: of the random numbers.
    """

    key: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    seed: int


class Ref(NamedTuple):
    """Stands for a value among the arguments of a `CallRequest`."""

    number: int


class CallRequest(NamedTuple):
    """A call of a function on each rank.

    Attributes:
        name: the function in errors.
        packed: the function or its name ``module.function``, and its arguments with `Ref` in place of values: pickled,
            so that a function which a rank cannot load fails alone.
        buffers: what travels beside the pickle.
        num_outs: number of tensors in its result; -1 if unknown, -2 to keep the result as one object.
        grad: whether autograd records it.
    """

    name: str
    packed: bytes
    buffers: tuple[Any, ...]
    num_outs: int
    grad: bool
