"""The records of the op stream: 64-bit integers, in which a cached operation takes two more than it has arguments.

A frame holds records, the templates that they use for the first time, and objects that integers cannot express. Every
record but `FREE` has a sequence number: the frame's first record has that of the frame, each further one the next.

An operation is ``template, argument..., first result``. An argument is the number of a value, an integer, or the bits
of a float. Numbers of values are never reused.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from monarch_hpc.core.dataclass import dataclass

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
    "LOAN",
    "NO_GRAD",
    "OPTIMIZER_STEP",
    "PUT",
    "REQUIRE_GRAD",
    "SET_DATA",
    "SET_GRAD",
    "SHARDED_CALLS",
    "TAKE",
    "TRAINING_CALLS",
    "UPDATE",
    "CallRequest",
    "CollectiveSpec",
    "CoordinateSpec",
    "GroupSpec",
    "MeshSpec",
    "ModulePlan",
    "OpSpec",
    "OptimizerSpec",
    "ProgramSpec",
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
"""``SET_DATA, target, value, kind``; for the kind see `worker.gradients.set_data`."""
ALIAS = 7
"""``ALIAS, value, result``"""
PUT = 8
"""``PUT, object, result``; the object is a tensor."""
CALL = 9
"""``CALL, object, first result, count, argument...``; the object is a `CallRequest`."""
LEND = 10
"""``LEND, value, token``; a copy for an actor. Tokens are numbers like those of results: they grow."""
LOAN = 11
"""``LOAN, value, token``; hands the value itself to another stream of this rank. Tokens are as of `LEND`."""
TAKE = 12
"""``TAKE, key, token, result or 0, value or 0``; waits for what the engine *key* hands over, and takes it as a result,
or as the end of a loan of a value of its own."""
UPDATE = 13
"""``UPDATE, count of integers, count of operations, version, number of the next value``; a barrier of all ranks, after
which they execute the records of an optimizer's step, in as many integers behind it. Without any it does nothing: the
step is not in one frame, and a `COMMIT` follows it."""
OPTIMIZER_STEP = 14
"""``OPTIMIZER_STEP, optimizer``; in programs only."""
COMMIT = 15
"""``COMMIT, version, number of the next value``; a barrier of all ranks, after what it commits."""
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

TRAINING_CALLS = "monarch_hpc.tensor.worker.training."
"""The package whose functions a `CallRequest` names, ``module.function``, for modules and optimizers on the ranks."""

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
        device: type of the device that the values are on.
    """

    groups: tuple[tuple[int, ...], ...]
    reduction: str
    scatter: bool
    device: str


class TransferSpec(NamedTuple):
    """Copies between ranks: ``template, value or 0, result or 0, tag, type, ndim, size...``.

    Attributes:
        pairs: source and target ranks; a source may occur several times.
        device: type of the device that the values are on.
    """

    pairs: tuple[tuple[int, int], ...]
    device: str


class MeshSpec(NamedTuple):
    """A mesh with sharded tensors, by whose number a frame says that its tensors are.

    Attributes:
        key: identifies the engine, for the names of process groups.
        names: names of the dimensions.
        sizes: their sizes.
        ranks: ranks in the mesh of procs, row by row.
        seed: of the random numbers.
        device: type of the device that has the parts.
    """

    key: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    seed: int
    device: str = "cpu"


class OptimizerSpec(NamedTuple):
    """An optimizer of torch, whose steps a program takes on the ranks.

    Attributes:
        name: of its class in `torch.optim`.
        groups: for each group the numbers of its parameters, and its options.
        floats: for each float that a record of the program carries for it: group, option, and place in a tuple or -1.
        state: for each parameter, in this order, its state by name: a `Ref`, or a tensor or number of the program.
    """

    name: str
    groups: tuple[tuple[tuple[int, ...], dict[str, Any]], ...]
    floats: tuple[tuple[int, str, int], ...]
    state: tuple[dict[str, Any], ...]


class GraphLimits(NamedTuple):
    """Limits of graphs of operators on the ranks, see the config keys.

    Attributes:
        least_ops: fewest operators in a row that are a graph.
        captures: graphs that may be made of them, one after the other.
    """

    least_ops: int
    captures: int


class ProgramSpec(NamedTuple):
    """A captured sequence of records: ``template, number of the first own value, formal..., float...``.

    A record of it with 0 in place of the number forgets it.

    Attributes:
        ints: the records.
        own: positions in *ints* of numbers of values that the program makes, which are counted from 0 there.
        formals: positions of its arguments, and the place of each.
        num_formals: number of arguments.
        num_floats: number of floats for optimizers.
        num_values: number of values that it makes.
        num_ops: number of sequence numbers that its records take.
        objects: what its records refer to.
        optimizers: those that take steps.
        commits: whether each step of one is a commit of all ranks.
        lowers: whether ranks may replay it below DTensor.
        graphs: limits of graphs of what runs there; None if there are to be none.
    """

    ints: bytes
    own: tuple[int, ...]
    formals: tuple[tuple[int, int], ...]
    num_formals: int
    num_floats: int
    num_values: int
    num_ops: int
    objects: tuple[Any, ...]
    optimizers: tuple[OptimizerSpec, ...]
    commits: bool
    lowers: bool
    graphs: GraphLimits | None = None


class ModulePlan(NamedTuple):
    """How a module that lives on the ranks is parallel.

    Attributes:
        parallelize: takes the module and a DeviceMesh, and returns the module to call, or None for the same.
        compile: backend of torch.compile; empty if it is not used.
        out_dims: for each dimension of the mesh, the dimension of results that it splits, or -1, and the module gets
            this rank's parts of its arguments; None if it gets sharded tensors, and returns such.
        shard_dims: likewise for parameters and buffers by name, where *out_dims* is None.
    """

    parallelize: Any
    compile: str
    out_dims: tuple[int, ...] | None
    shard_dims: dict[str, tuple[int, ...]]


class Ref(NamedTuple):
    """Stands for a value among the arguments of a `CallRequest`.

    Attributes:
        number: of the value; in a program -1 - *place* for the record's argument at *place*.
    """

    number: int


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Stands for a process group among the arguments of a `CallRequest`.

    Attributes:
        key: identifies the engine.
        groups: the ranks of each group, in order.
    """

    key: int
    groups: tuple[tuple[int, ...], ...]


class CallRequest(NamedTuple):
    """A call of a function on each rank.

    Attributes:
        name: the function in errors.
        packed: the function or its name ``module.function``, and its arguments with `Ref` in place of values: pickled,
            so that a function which a rank cannot load fails alone.
        buffers: what travels beside the pickle.
        num_outs: number of tensors in its result; -1 if unknown, -2 to keep the result as one object.
        grad: whether autograd records it.
        grads: ``read`` if it does not run when the gradient of an argument failed, ``dropped`` if it drops these
            gradients; else empty.
    """

    name: str
    packed: bytes
    buffers: tuple[Any, ...]
    num_outs: int
    grad: bool
    grads: str = ""
