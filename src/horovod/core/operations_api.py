# SPDX-License-Identifier: Apache-2.0
"""The operations as users call them: every signature, docstring and form once, for all frameworks (step 3).

A framework's package binds Operations to its tensors by an adapter, and exports the bound methods as functions. It
overrides methods of BlockingForms (blocking_forms.py) if it differs: PyTorch makes the blocking forms differentiable
there. core/collectives.py has the meaning of an operation, its names, checks and errors.

Forms ending in _async return a handle for poll and synchronize; forms ending in _ write the result into the tensor
given. All ranks call the same operations; an allreduce has equal shapes and dtypes on all ranks, an allgather or
alltoall may differ in dimension 0. Errors: core/exceptions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horovod.core.blocking_forms import BlockingForms
from horovod.core.compression import Compressor, NoneCompressor
from horovod.core.native import SYNC, Average
from horovod.core.operations import register
from horovod.core.process_sets import ProcessSet, global_process_set

__all__ = ["Operations"]

T = TypeVar("T")


class Operations(BlockingForms[T]):
    """The operations over one framework's tensors."""

    # Allreduce

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduces `tensor` over all ranks into new memory.

        The result is postscale * reduce(prescale * x), divided by the size for Average, which is the default. Raises
        HorovodInternalError if the ranks disagree or one is lost, ValueError for what is wrong on this rank.
        """
        how = (op, average, prescale_factor, postscale_factor, process_set)
        if compression is NoneCompressor:  # the short way: the latency of a small tensor
            return self._reduce(tensor, name, how)
        call = ("allreduce", name, process_set)
        compression = self.check_compression(compression, *call)
        return self._compressed([tensor], compression, call, lambda sent: [self._reduce(sent[0], name, how)])[0]

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts allreduce; returns a handle."""
        how = (op, average, prescale_factor, postscale_factor, process_set)
        return register(self.collectives.allreduce(tensor, name, how, False))

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Does allreduce into `tensor` itself, which is returned."""
        return self._reduce_into(tensor, name, (op, average, prescale_factor, postscale_factor, process_set))

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts allreduce_; returns a handle. `tensor` is not to be touched until it is synchronized."""
        how = (op, average, prescale_factor, postscale_factor, process_set)
        operation = self.collectives.allreduce(tensor, name, how, True)
        self._overwritten(tensor)
        return register(operation)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Does allreduce of several tensors as a whole: all of them or none."""
        how = (op, average, prescale_factor, postscale_factor, process_set)
        call = ("grouped_allreduce", name, process_set)
        compression = self.check_compression(compression, *call)
        return self._compressed(tensors, compression, call, lambda sent: self._reduce_group(sent, name, how))

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts grouped_allreduce; returns a handle."""
        how = (op, average, prescale_factor, postscale_factor, process_set)
        return register(self.collectives.grouped_allreduce(tensors, name, how, False))

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """Does grouped_allreduce into the tensors themselves, which are returned."""
        return self._reduce_group_into(tensors, name, (op, average, prescale_factor, postscale_factor, process_set))

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts grouped_allreduce_; returns a handle."""
        how = (op, average, prescale_factor, postscale_factor, process_set)
        operation = self.collectives.grouped_allreduce(tensors, name, how, True)
        self._overwritten(*tensors)
        return register(operation)

    # Allgather

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Joins all ranks' tensors along dimension 0 in rank order; that dimension may differ by rank."""
        return self._gather(tensor, name, process_set)

    def allgather_async(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
        """Starts allgather; returns a handle."""
        return register(self.collectives.allgather(tensor, name, process_set))

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> tuple[T, ...]:
        """Does allgather of several tensors as a whole: all of them or none."""
        return self._gather_group(tensors, name, process_set)

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts grouped_allgather; returns a handle."""
        return register(self.collectives.grouped_allgather(tensors, name, process_set))

    # Alltoall

    def alltoall(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends splits[r] rows of `tensor` to each rank r, the first rows to the first rank.

        Rows beyond their sum go to no rank. `splits` is a list of ints, or a one-dimensional tensor of int32 or int64.
        Returns the rows that came, in rank order, and as an int32 tensor how many came from each rank; without `splits`
        every rank gets equally many, and the rows alone are returned.
        """
        return self._exchange(tensor, splits, name, process_set)

    def alltoall_async(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts alltoall; returns a handle, whose result is the pair even without `splits`."""
        return register(self.collectives.alltoall(tensor, splits, name, process_set))

    # Reducescatter

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Gives this rank its rows of the allreduce of `tensor`.

        They are dealt in rank order, one more to the first ranks if they do not come out even.
        """
        how = (op, None, prescale_factor, postscale_factor, process_set)
        call = ("reducescatter", name, process_set)
        compression = self.check_compression(compression, *call)
        return self._compressed([tensor], compression, call, lambda sent: [self._scatter(sent[0], name, how)])[0]

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Starts reducescatter; returns a handle."""
        how = (op, None, prescale_factor, postscale_factor, process_set)
        return register(self.collectives.reducescatter(tensor, name, how))

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """Does reducescatter of several tensors as a whole: all of them or none."""
        how = (op, None, prescale_factor, postscale_factor, process_set)
        call = ("grouped_reducescatter", name, process_set)
        compression = self.check_compression(compression, *call)
        return self._compressed(tensors, compression, call, lambda sent: self._scatter_group(sent, name, how))

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Starts grouped_reducescatter; returns a handle."""
        how = (op, None, prescale_factor, postscale_factor, process_set)
        return register(self.collectives.grouped_reducescatter(tensors, name, how))

    # Broadcast

    def broadcast(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Copies the tensor of world rank `root_rank` into new memory."""
        return self._copy(tensor, root_rank, name, process_set)

    def broadcast_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts broadcast; returns a handle."""
        return register(self.collectives.broadcast(tensor, root_rank, name, process_set, False))

    def broadcast_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Overwrites `tensor` with the root's and returns it."""
        return self._copy_into(tensor, root_rank, name, process_set)

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts broadcast_; returns a handle."""
        operation = self.collectives.broadcast(tensor, root_rank, name, process_set, True)
        self._overwritten(tensor)
        return register(operation)

    # Barrier

    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Blocks until every rank of the set has called it."""
        self._meet(process_set)

    # Point to point

    def send(self, tensor: T, dest: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
        """Sends `tensor` to rank `dest` of the world, a member of the set, and blocks until it is there.

        The other rank calls recv with as many elements of the same dtype, and with the same tag, a 32-bit integer.
        Messages of one tag keep their order. Raises HorovodInternalError as an allreduce does.
        """
        self.collectives.send(tensor, dest, tag, process_set, SYNC).wait()

    def send_async(self, tensor: T, dest: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> int:
        """Starts a send; returns its handle."""
        return register(self.collectives.send(tensor, dest, tag, process_set))

    def recv(
        self, tensor: T, source: int | None = None, tag: int = 0, process_set: ProcessSet = global_process_set
    ) -> int:
        """Receives into `tensor` from rank `source` of the world, or from any member of the set if it is None.

        Blocks. Returns the rank that sent.
        """
        return self.collectives.receive(tensor, source, tag, process_set, SYNC).wait()  # type: ignore[no-any-return]

    def recv_async(
        self, tensor: T, source: int | None = None, tag: int = 0, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts a receive; returns its handle, for which synchronize gives the rank that sent."""
        return register(self.collectives.receive(tensor, source, tag, process_set))
