# SPDX-License-Identifier: Apache-2.0
"""Checks and names for TensorFlow's tensors, before a node of a collective is made (step 3).

Eager calls tell the peers, who wait already, what is wrong. In a graph, which is not run yet, it is an error of this
rank alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horovod.core import context as contexts
from horovod.core.collectives import Reduction, resolved
from horovod.core.context import LOCAL_ERRORS
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import ALLREDUCE, DTYPE_NAMES, Adasum
from horovod.core.process_sets import ProcessSet, global_process_set, lasting_number, told_in
from horovod.core.requests import check_adasum_ranks, check_name, check_reduction
from horovod.core.tensors import check_complex, of_each
from horovod.core.wording import quoted
from horovod.tensorflow import xla

__all__ = [
    "among_concurrent",
    "as_pairs",
    "assignable",
    "check_op",
    "check_rows",
    "checked",
    "node_name",
    "plain_variable",
    "reduction_attributes",
    "sendable",
    "tell",
    "unique_name",
    "unscoped_name",
    "wire_name",
]

T = TypeVar("T")
DTYPES = frozenset((*DTYPE_NAMES, "complex64", "complex128"))


def node_name(label: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool) -> str | None:
    """The name under which the ranks meet, but for the operation in front. None: by order."""
    check_name(name)
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    if name is None:
        ends = [tensors[0]] if len(tensors) == 1 else [tensors[0], tensors[-1]] if tensors else []
        camel = "".join(part.capitalize() for part in label.split("_"))
        name = "_".join([f"Horovod{camel}", *(re.sub(r"\W", "_", end.name) for end in ends)])
    unique: str = graph.unique_name(name)
    return among_concurrent(unique.rsplit("/", 1)[-1] if ignore_name_scope else unique)


def unique_name(name: str) -> str:
    """`name` with its scope, made different from all other names whose nodes may run at the same time."""
    return among_concurrent(tf.compat.v1.get_default_graph().unique_name(name))


def among_concurrent(name: str) -> str:
    """`name`, with a number behind it if a node of another function that may run at the same time has it already.

    Functions that TensorFlow runs one after the other may share names, and must: one rank alone may trace a function
    again. A graph of TensorFlow 1 (or tf.compat.v1.wrap_function) does not order the functions that it calls. It is
    built once, in the same order on all ranks, so counting in it gives the same names everywhere.
    """
    graph = tf.compat.v1.get_default_graph()
    unordered = None
    around = graph
    while around is not None:
        is_function = around.building_function
        if not is_function and tf.compat.v1.executing_eagerly_outside_functions():
            break  # eagerly, functions run one after the other
        if not around._add_control_dependencies:
            unordered = around
        around = around.outer_graph if is_function else None
    if unordered is None or unordered is graph:
        return name
    return unscoped_name(unordered, name)


def unscoped_name(graph: Any, name: str) -> str:
    """`name`, made different from all names of `graph`, without the scope that the graph is in."""
    with graph.name_scope(None):
        return str(graph.unique_name(name))


def wire_name(label: str, name: str | None) -> str:
    """The name as the native core knows it."""
    return "" if name is None else f"{label}.{name}"


class InvalidArgument(InvalidRequestError, tf.errors.InvalidArgumentError):
    """A call that is wrong on this rank.

    It is what TensorFlow raises if only a running node can tell, and a ValueError.
    """

    def __init__(self, text: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, text)

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str]]:
        return type(self), (self.message,)


def checked(label: str, name: str | None, process_set: ProcessSet, build: Callable[[], T]) -> T:
    """Runs `build`, which checks what this rank was given and makes the node."""
    try:
        return _built(label, name, process_set, build)
    except InvalidRequestError as error:
        raise InvalidArgument(str(error)) from error.__cause__


def _built(label: str, name: str | None, process_set: ProcessSet, build: Callable[[], T]) -> T:
    try:
        if not label.endswith("allreduce") or label.startswith("sparse"):
            xla.refuse(label)
        return build()
    except LOCAL_ERRORS as error:
        if not tf.executing_eagerly() or not contexts.is_initialized():
            raise
        contexts.current().refuse(label, name, error, told_in(process_set))


def tell(label: str, name: str | None, process_set: ProcessSet, error: Exception) -> None:
    """Tells the peers that this rank's call will not come, if it is one that `checked` does not tell of.

    Not from a graph, in which nothing runs yet.
    """
    if not isinstance(error, LOCAL_ERRORS) and tf.executing_eagerly() and contexts.is_initialized():
        wire = None if name is None else f"{label}.{name}"
        contexts.current().tell(wire, told_in(process_set), str(error))


def sendable(values: Sequence[Any]) -> list[tf.Tensor]:
    """As tensors. Raises if the engine has no such dtype."""
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"a grouped operation takes a list of tensors, got {type(values).__name__}")
    tensors = of_each(tf.convert_to_tensor, values)
    _check_dtypes(tensors)
    return tensors


def _check_dtypes(tensors: Sequence[Any], names: Sequence[str] = ()) -> None:
    """`names`: those of variables, by which an error names one. Otherwise it gives the place in the list."""
    for index, tensor in enumerate(tensors):
        kind = tf.as_dtype(tensor.dtype).base_dtype.name
        if kind not in DTYPES:
            place = f"variable {quoted(names[index])}: " if names else f"tensor {index} of {len(tensors)}: "
            seen = f"dtype {kind}: expected one of {', '.join(sorted(DTYPES))}"
            raise InvalidRequestError(f"{place}{seen}" if names or len(tensors) > 1 else seen)


def as_pairs(tensors: Sequence[Any], op: Any = None) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """The tensors to send, complex numbers as pairs of real ones, and a function that restores them from the results.

    Raises NotImplementedError if complex tensors have no reduction `op`.
    """
    if not any(tensor.dtype.is_complex for tensor in tensors):
        return list(tensors), list
    check_complex(op)

    def numbers(results: Sequence[Any]) -> list[Any]:
        return [
            tf.complex(result[..., 0], result[..., 1]) if tensor.dtype.is_complex else result
            for tensor, result in zip(tensors, results, strict=True)
        ]

    pairs = [
        tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1) if tensor.dtype.is_complex else tensor
        for tensor in tensors
    ]
    return pairs, numbers


def plain_variable(variable: Any) -> Any:
    """TensorFlow's variable in one of Keras 3, and any other as it is."""
    inner = None if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def assignable(variables: Any) -> list[Any]:
    """The variables in a list, as TensorFlow's own. Raises TypeError for anything else, such as a single variable.

    Raises InvalidRequestError, which names the variable, for a dtype that cannot be sent.
    """
    if tf.is_tensor(variables) or not isinstance(variables, Iterable):
        hint = "\nhint: put it into a list" if hasattr(variables, "assign") else ""
        raise TypeError(f"variables: expected a list of variables, got {type(variables).__name__}{hint}")
    listed = list(variables)
    for variable in listed:
        if not hasattr(variable, "assign"):
            raise TypeError(f"variables: expected a list of variables, got {type(variable).__name__} in it")
    plain = [plain_variable(variable) for variable in listed]
    for variable in plain:
        dtype = tf.as_dtype(variable.dtype).base_dtype.name
        if dtype not in DTYPES:
            hint = "\nhint: broadcast_object_fn() is for strings in a graph" if dtype == "string" else ""
            raise InvalidRequestError(
                f"variable {variable.name} has dtype {dtype}: expected one of {', '.join(sorted(DTYPES))}{hint}"
            )
    return plain


def check_op(op: Any, tensors: Sequence[tf.Tensor], process_set: ProcessSet | None, kind: int = ALLREDUCE) -> None:
    """Raises if tensors have no such reduction."""
    _check_dtypes(tensors)
    check_reduction(kind, op, [DTYPE_NAMES.index(tensor.dtype.name) for tensor in tensors])
    if op == Adasum:
        check_adasum_ranks((process_set or global_process_set).size() or 1)


def reduction_attributes(how: Reduction, tensors: Sequence[tf.Tensor], kind: int) -> dict[str, Any]:
    """The attributes of a reducing node."""
    op, prescale, postscale, _ = resolved(how)
    check_op(op, tensors, how[-1], kind)
    number = lasting_number(how[-1])
    return {"reduce_op": op, "prescale": repr(prescale), "postscale": repr(postscale), "process_set": number}


def check_rows(label: str, tensors: Sequence[tf.Tensor]) -> None:
    """Raises if a tensor has no rows."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise InvalidRequestError(f"{label} needs rows: expected at least one dimension, got a 0-d tensor")
