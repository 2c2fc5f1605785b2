# SPDX-License-Identifier: Apache-2.0
"""How the blocking forms of the operations run (step 3). A framework that does more overrides these methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from horovod.core.collectives import Reduction
from horovod.core.compression import Compressor, NoneCompressor, compressed, why_no_compressor
from horovod.core.direct import DirectCollectives
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import SYNC
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.tensors import Adapter

__all__ = ["BlockingForms"]

T = TypeVar("T")


class BlockingForms(Generic[T]):
    """Over one framework's tensors, by its adapter."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self.collectives: DirectCollectives[T] = DirectCollectives(adapter)

    def _reduce(self, tensor: T, name: str | None, how: Reduction) -> T:
        return self.collectives.run_allreduce(tensor, name, how, False)

    def _reduce_into(self, tensor: T, name: str | None, how: Reduction) -> T:
        self._overwritten(tensor)
        return self.collectives.run_allreduce(tensor, name, how, True)

    def _reduce_group(self, tensors: Sequence[T], name: str | None, how: Reduction) -> Sequence[T]:
        return self.collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait()  # type: ignore[no-any-return]

    def _reduce_group_into(self, tensors: Sequence[T], name: str | None, how: Reduction) -> tuple[T, ...]:
        operation = self.collectives.grouped_allreduce(tensors, name, how, True, SYNC)
        self._overwritten(*tensors)
        return operation.wait()  # type: ignore[no-any-return]

    def _gather(self, tensor: T, name: str | None, process_set: ProcessSet) -> T:
        return self.collectives.allgather(tensor, name, process_set, SYNC).wait()  # type: ignore[no-any-return]

    def _gather_group(self, tensors: Sequence[T], name: str | None, process_set: ProcessSet) -> tuple[T, ...]:
        return self.collectives.grouped_allgather(tensors, name, process_set, SYNC).wait()  # type: ignore[no-any-return]

    def _exchange(self, tensor: T, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        return self.collectives.alltoall(tensor, splits, name, process_set, SYNC, splits is not None).wait()

    def _scatter(self, tensor: T, name: str | None, how: Reduction) -> T:
        return self.collectives.reducescatter(tensor, name, how, SYNC).wait()  # type: ignore[no-any-return]

    def _scatter_group(self, tensors: Sequence[T], name: str | None, how: Reduction) -> Sequence[T]:
        return self.collectives.grouped_reducescatter(tensors, name, how, SYNC).wait()  # type: ignore[no-any-return]

    def _copy(self, tensor: T, root_rank: int, name: str | None, process_set: ProcessSet) -> T:
        return self.collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()  # type: ignore[no-any-return]

    def _copy_into(self, tensor: T, root_rank: int, name: str | None, process_set: ProcessSet) -> T:
        operation = self.collectives.broadcast(tensor, root_rank, name, process_set, True, SYNC)
        self._overwritten(tensor)
        return operation.wait()  # type: ignore[no-any-return]

    def _meet(self, process_set: ProcessSet) -> None:
        self.collectives.barrier(process_set)

    def _overwritten(self, *tensors: T) -> None:
        """An operation writes into `tensors`: it has started, or starts now."""

    def _is_group(self, tensors: Any) -> bool:
        """True if they can be compressed. The collectives refuse anything else, so that peers are told."""
        return isinstance(tensors, (list, tuple))

    def check_compression(
        self, compression: Any, label: str, name: str | None, process_set: ProcessSet = global_process_set
    ) -> type[Compressor]:
        """Returns the compressor. Raises ValueError for anything else, and tells the peers: `label` will not come."""
        why = None if compression is NoneCompressor else why_no_compressor(compression)
        if why is None:
            return compression  # type: ignore[no-any-return]
        self._refuse(label, name, why, process_set)
        return NoneCompressor  # for a compiler that traces on

    def _refuse(self, label: str, name: str | None, why: str, process_set: ProcessSet) -> None:
        """Raises ValueError, and tells the peers."""
        self.collectives.refuse(label, name, InvalidRequestError(why), process_set)

    def _compressed(
        self,
        tensors: Sequence[T],
        compression: type[Compressor],
        call: tuple[str, str | None, ProcessSet],
        run: Callable[[Sequence[T]], Sequence[T]],
    ) -> list[T]:
        """Runs `run` on the compressed tensors, and decompresses the results. The peers are told if it cannot."""
        if not self._is_group(tensors):
            return list(run(tensors))
        label, name, process_set = call
        tell = lambda error: self.collectives.tell(label, name, error, process_set)  # noqa: E731
        pairs = compressed(tensors, compression, tell)
        results = run([sent for sent, _ in pairs])
        return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
