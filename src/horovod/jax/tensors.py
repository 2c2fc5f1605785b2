# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays as the core sees them (step 3), and pytrees of them.

An operation outside of compiled functions reads an array's memory on the host, which waits until the array is computed,
into a private copy. The result is made in this copy, and the new array takes its memory over if the array is on the
host.

Every operation takes a pytree in place of a tensor: its leaves are one grouped operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from horovod.core import context as contexts
from horovod.core.collectives import Reduction
from horovod.core.context import LOCAL_ERRORS
from horovod.core.direct import DirectCollectives
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import BROADCAST, SYNC
from horovod.core.operations import Operation, TimeLimit, submit_group
from horovod.core.process_sets import ProcessSet, checked_root, number_of
from horovod.core.tensors import NumpyAdapter, numbers, pairs, unsupported_dtype

__all__ = ["ONE_TENSOR", "JaxAdapter", "Trees", "carried", "collectives", "flat", "not_an_array", "with_arrays"]

ONE_TENSOR = "alltoall takes one tensor: expected an array, got a pytree of several"
_ALIGNMENT_BYTES = 64  # of memory that JAX takes over as it is
_COPIED_BYTES = 1 << 14  # smaller arrays are copied faster than aligned
_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    count_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(count_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    memory: np.ndarray[Any, Any] = raw[start : start + count_bytes].view(dtype).reshape(shape)
    return memory


def not_an_array(leaf: Any) -> str:
    """The text of an error."""
    hint = "\nhint: call .todense() first" if hasattr(leaf, "todense") else ""
    return f"expected a jax.Array, or a pytree of such, got {type(leaf).__name__}{hint}"


def _on_host(tensor: jax.Array) -> np.ndarray[Any, Any]:
    """Its values, once they are computed.

    If the job has ended meanwhile, JAX raises the error that a compiled function was told. Its text grows with every
    function that went on with such results, so the job's own error is raised instead.
    """
    try:
        return np.asarray(tensor)
    except (RuntimeError, ValueError):
        cause = contexts.current().end_seen()
        if cause is None:
            raise
        raise cause from None


class JaxAdapter(NumpyAdapter):
    """See core/tensors.py. What is staged is a NumPy array."""

    def stage(self, tensor: Any) -> np.ndarray[Any, Any]:
        if isinstance(tensor, jax.core.Tracer):
            raise InvalidRequestError(
                "an operation with a handle cannot be traced: expected an array, got a tracer of JAX\n"
                "hint: use the form without _async in compiled functions, which XLA runs beside what does not need it"
            )
        if not isinstance(tensor, jax.Array):
            if not isinstance(tensor, _NUMBERS):
                raise TypeError(not_an_array(tensor))
            tensor = jnp.asarray(tensor)  # of a dtype that JAX has
        if not tensor.is_fully_addressable:
            raise InvalidRequestError(
                "the array is spread over several processes of JAX\nhint: give this process' own part of it"
            )
        if jnp.issubdtype(tensor.dtype, jax.dtypes.extended):
            raise unsupported_dtype(tensor.dtype)
        view = _on_host(tensor)
        if view.nbytes < _COPIED_BYTES:
            return pairs(np.array(view, order="C"))
        staged = _aligned(view.shape, view.dtype)
        staged[...] = view
        return pairs(staged)

    def stage_in_place(self, tensor: Any) -> np.ndarray[Any, Any]:
        raise InvalidRequestError("JAX's arrays cannot be changed: there are no operations in place")

    def empty(self, shape: tuple[int, ...], dtype: int) -> np.ndarray[Any, Any]:
        return _aligned(shape, self._dtype_of[dtype])

    def deliver(self, staged: np.ndarray[Any, Any], like: Any) -> jax.Array:
        # On one device, an array that was not put there by the user may go to another one later.
        committed = isinstance(like, jax.Array) and like.committed
        staged = numbers(staged, like)
        return jax.device_put(staged, like.sharding) if committed else jax.device_put(staged)


def flat(tree: Any, copied: bool = False) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and its structure.

    A sparse matrix of JAX is one leaf, which no operation takes: its indices cannot be reduced or joined. `copied`:
    they can, as all other leaves.
    """
    leaves, structure = tree_util.tree_flatten(tree, is_leaf=None if copied else _is_sparse)
    return leaves, structure


def _is_sparse(leaf: Any) -> bool:
    module = sys.modules.get("jax.experimental.sparse")
    return module is not None and isinstance(leaf, module.JAXSparse)


def with_arrays(leaves: Sequence[Any]) -> list[Any]:
    """The leaves of a pytree, Python's numbers as arrays."""
    return [jnp.asarray(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf for leaf in leaves]


def carried(tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The form in which a tensor that is only moved is sent, and a function that restores it from the result.

    Keys of jax.random travel as their numbers.
    """
    dtype = getattr(tensor, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return tensor, lambda result: result
    kind = jax.random.key_impl(tensor)
    return jax.random.key_data(tensor), lambda result: jax.random.wrap_key_data(result, impl=kind)


def _counts(received: np.ndarray[Any, Any]) -> jax.Array:
    """The numbers of rows that came. JAX would cut those that its integers are too short for."""
    counts = jnp.asarray(received)
    if counts.dtype != received.dtype:
        raise InvalidRequestError(
            f"alltoall: {max(received)} rows came from one rank, and JAX has no integers of 64 bits\n"
            "hint: jax.config.update('jax_enable_x64', True), or send at most 2147483647 rows to a rank"
        )
    return counts


class Trees(DirectCollectives[Any]):
    """The operations outside of compiled functions, over pytrees."""

    def allreduce(self, tensor: Any, name: str | None, how: Reduction, in_place: bool, flags: int = 0) -> Operation:
        if tree_util.all_leaves([tensor]):
            return super().allreduce(tensor, name, how, in_place, flags)
        leaves, structure = flat(tensor)
        return _given_back(super().grouped_allreduce(leaves, name, how, in_place, flags), structure)

    def run_allreduce(
        self, tensor: Any, name: str | None, how: Reduction, in_place: bool, limit: TimeLimit | None = None
    ) -> Any:
        if tree_util.all_leaves([tensor]):
            return super().run_allreduce(tensor, name, how, in_place, limit)
        return self.allreduce(tensor, name, how, in_place, SYNC).wait(None, limit)

    def grouped_allreduce(
        self, tensors: Sequence[Any], name: str | None, how: Reduction, in_place: bool, flags: int = 0
    ) -> Operation:
        if not isinstance(tensors, (list, tuple)):
            return super().grouped_allreduce(tensors, name, how, in_place, flags)  # which refuses it
        leaves, structure = flat(list(tensors))
        return _given_back(super().grouped_allreduce(leaves, name, how, in_place, flags), structure)

    def _gather(self, tensors: Sequence[Any], *arguments: Any) -> Operation:
        if not isinstance(tensors, (list, tuple)):
            return super()._gather(tensors, *arguments)  # which refuses it
        leaves, structure = flat(tuple(tensors))
        sent = [carried(leaf) for leaf in leaves]
        return _given_back(super()._gather([tensor for tensor, _ in sent], *arguments), structure, sent)

    def _scatter(self, tensors: Sequence[Any], label: str, name: str | None, how: Reduction, flags: int) -> Operation:
        if not isinstance(tensors, (list, tuple)):
            return super()._scatter(tensors, label, name, how, flags)  # which refuses it
        leaves, structure = flat(list(tensors))
        return _given_back(super()._scatter(leaves, label, name, how, flags), structure)

    def alltoall(
        self,
        tensor: Any,
        splits: Any,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
        with_splits: bool = True,
    ) -> Operation:
        if not tree_util.all_leaves([tensor]):
            self.refuse("alltoall", name, TypeError(ONE_TENSOR), process_set)
        sent, restore = carried(tensor)
        operation = super().alltoall(sent, splits, name, process_set, flags, True)
        collect = operation.collect
        assert collect is not None

        def restored(operation: Operation) -> Any:
            rows, received = collect(operation)
            return (restore(rows), _counts(received)) if with_splits else restore(rows)

        operation.collect = restored
        return operation

    def broadcast(
        self,
        tensor: Any,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet | None,
        in_place: bool,
        flags: int = 0,
    ) -> Operation:
        """One operation, whatever the number of leaves."""
        context = contexts.current()
        adapter = self._adapter
        try:
            root = checked_root(context, root_rank, number_of(process_set))
            leaves, structure = flat(tensor, copied=True)
            sent = [carried(leaf) for leaf in leaves]
            staged = self._stage_group([leaf for leaf, _ in sent], in_place)
            key = (BROADCAST, name, root, process_set, *[form for mine in staged for form in (mine.dtype, mine.shape)])
            request = context.requests.find(key) or self._prepared(
                context, key, "broadcast", staged, process_set, root_rank=root
            )
            addresses = self._addresses(staged)
            handle = submit_group(context, request, addresses, addresses, flags)
        except LOCAL_ERRORS as error:
            self.refuse("broadcast", name, error, process_set)
        results = lambda _: [adapter.deliver(*pair) for pair in zip(staged, leaves, strict=True)]  # noqa: E731
        return _given_back(Operation(context, handle, None, staged, results), structure, sent)


def _given_back(operation: Operation, structure: Any, sent: Sequence[Any] = ()) -> Operation:
    """The operation, with its results as the leaves of a tree. `sent`: as of carried(), by leaf."""
    collect = operation.collect
    assert collect is not None

    def collected(operation: Operation) -> Any:
        results = collect(operation)
        if sent:
            results = [restore(result) for result, (_, restore) in zip(results, sent, strict=True)]
        return structure.unflatten(results)

    operation.collect = collected
    return operation


collectives: Trees = Trees(JaxAdapter())
