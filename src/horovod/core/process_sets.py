# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that operate together.

The global set, all ranks, is number 0 in the native core; others are given to init, or come and go with add_process_set
and remove_process_set, which all ranks call in the same order.

When a generation has ended, its sets are no longer registered. Thread safety: any thread; one change at a time.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Sequence
from typing import Any

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.context import LOCAL_ERRORS, Context, NotAMemberError
from horovod.core.exceptions import InvalidRequestError
from horovod.core.operations import Operation, number_given
from horovod.core.wording import shown
from horovod.world import mpi

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_process_set",
    "checked_root",
    "global_process_set",
    "lasting_number",
    "number_of",
    "remove_process_set",
    "set_of_lasting_number",
    "set_of_ranks",
    "told_in",
]

_changing = threading.Lock()


def _registered() -> list[ProcessSet]:
    """The sets that are registered, but the global one. There are none outside of a world."""
    context = contexts.current() if contexts.is_initialized() else None
    return list(context.sets.values()) if context is not None and context.running else []


class ProcessSet:
    """A set of world ranks, sorted. `process_set_id` is None until it is registered; the global set's is 0."""

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None
    lasting = 0  # its lasting_number, while it is registered

    def __new__(cls, ranks_or_comm: Any = None) -> ProcessSet:
        """A communicator's set that is registered already, say by init(comm=[...]), is that very set."""
        for known in _registered():
            has_comm = known.mpi_comm is not None and isinstance(ranks_or_comm, type(known.mpi_comm))
            if has_comm and known.mpi_comm == ranks_or_comm:
                return known
        return super().__new__(cls)

    def __init__(self, ranks_or_comm: Any) -> None:
        """ranks_or_comm: a list of ranks, or a communicator of mpi4py."""
        if self.process_set_id is not None:
            return
        members = mpi.ranks_in(ranks_or_comm, None)
        if members is not None:
            self.mpi_comm, ranks_or_comm = ranks_or_comm, members
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise TypeError(f"a process set is a list of ranks: expected a list, got {shown(ranks_or_comm)}") from None
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise InvalidRequestError(f"a process set is a list of ranks: expected ints, got {shown(ranks)}")
        self.ranks = sorted(ranks)

    def take_ranks(self, world: Any) -> None:
        """A set of a communicator's members: their ranks in `world`, the communicator that init was given, if any."""
        members = mpi.ranks_in(self.mpi_comm, world)
        if members is not None:
            self.ranks = sorted(members)

    def size(self) -> int | None:
        """Number of ranks in the set; None if it is not registered."""
        return None if self.process_set_id is None else contexts.current().place(self.process_set_id)[0]

    def rank(self) -> int | None:
        """This process' index in the set; None if it is not registered.

        Raises ValueError if this process is not a member.
        """
        if self.process_set_id is None:
            return None
        context = contexts.current()
        _, index = context.place(self.process_set_id)
        if index < 0:
            raise InvalidRequestError(f"rank {context.rank} is not in {self}")
        return index

    def included(self) -> bool:
        """True if this process is in the set. Raises NotInitializedError before init."""
        return contexts.rank() in (self.ranks or ())

    def has_peers(self) -> bool:
        """True if this process is in the set and has peers there.

        Raises InvalidRequestError if the set is not registered, unless it lists ranks and this one is not among them:
        without peers nothing is sent, so no operation would report it.
        """
        if self.ranks and not self.included():
            return False
        return contexts.current().place(_registered_number(self))[0] > 1

    def may_have_peers(self) -> bool:
        """As has_peers, but also true for a member of a set that may be there in a later world of an elastic job."""
        return self.included() if self.ranks and contexts.may_grow() else self.has_peers()

    def __copy__(self) -> ProcessSet:
        return self  # what is registered is this very object: a model that holds it may be copied

    def __deepcopy__(self, memo: object) -> ProcessSet:
        return self

    def __reduce__(self) -> Any:
        return set_of_ranks, (self.ranks,)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    def __reduce__(self) -> str:
        return "global_process_set"  # there is one in every process

    @property
    def ranks(self) -> list[int] | None:
        """All ranks of the running world; None before init."""
        return list(range(contexts.size())) if contexts.is_initialized() else None

    @ranks.setter
    def ranks(self, value: list[int] | None) -> None:
        pass  # the world decides


global_process_set = _GlobalProcessSet()
"""All ranks; the default of every operation."""


def speaks(process_set: ProcessSet = global_process_set) -> bool:
    """True on the rank that says what all members of the set would say. Before init, on each."""
    return not contexts.is_initialized() or not process_set.rank()


def set_of_ranks(ranks: Sequence[int]) -> ProcessSet:
    """The registered set of these ranks; a new one, which is not registered, if there is none."""
    wanted = ProcessSet(ranks)
    return next((known for known in _registered() if known.ranks == wanted.ranks), wanted)


def check_process_set(process_set: Any) -> None:
    """Raises ValueError for anything but a ProcessSet, registered or not."""
    if not isinstance(process_set, ProcessSet):
        got = shown(process_set)
        ranks = got if isinstance(process_set, (list, tuple)) else "ranks"
        raise InvalidRequestError(
            f"process_set: expected a ProcessSet, got {got}\nhint: hvd.add_process_set({ranks}) makes one"
        )


def number_of(process_set: ProcessSet | None) -> int:
    """The native core's number of a set.

    Raises InvalidRequestError if it is not registered or this rank is not a member.
    """
    if process_set is global_process_set or process_set is None:
        return 0
    check_process_set(process_set)
    number = _registered_number(process_set)
    context = contexts.current()
    if context.place(number)[1] < 0:
        raise NotAMemberError(f"rank {context.rank} is not in {process_set}")
    return number


def lasting_number(process_set: ProcessSet | None) -> int:
    """Stands for a set in compiled functions and saved models: it means a set of the same ranks in any generation.

    The native core takes it as a number. Raises InvalidRequestError as number_of.
    """
    number_of(process_set)
    return 0 if process_set is None else process_set.lasting


def set_of_lasting_number(number: int) -> ProcessSet | None:
    """The registered set that the number stands for, if there is one."""
    return global_process_set if number == 0 else next((one for one in _registered() if one.lasting == number), None)


def _registered_number(process_set: ProcessSet) -> int:
    if process_set is global_process_set:
        return 0
    context = contexts.current()
    number = process_set.process_set_id
    if number is None or context.sets.get(number) is not process_set:
        raise InvalidRequestError(
            f"{process_set} is not registered\nhint: give it to init(process_sets=[...]), or call add_process_set"
        )
    return number


def checked_root(context: Context, root_rank: Any, set_number: int) -> int:
    """The root as a world rank. Raises ValueError or TypeError."""
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__"):
        raise InvalidRequestError(f"root_rank={shown(root_rank)}: expected the number of a rank")
    root = operator.index(root_rank)
    if not 0 <= root < context.size:
        raise InvalidRequestError(f"root_rank={root}: expected 0 to {context.size - 1}, as the size is {context.size}")
    if set_number != 0 and root not in context.sets[set_number].ranks:
        raise InvalidRequestError(
            f"root_rank={root}: expected one of the ranks {context.sets[set_number].ranks} of the process set"
        )
    return root


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set of ranks (an empty list: all; or a communicator of mpi4py) and returns it.

    All ranks must call it, members or not; blocks until all have called it. Raises ValueError if the set exists
    already, or the job does not allow changes (see init), and HorovodInternalError if the ranks disagree.
    """
    context = contexts.current()
    _check_dynamic(context, "add_process_set")
    return register_set(context, process_set)


def register_set(context: Context, process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """add_process_set, whether or not the job allows it to scripts: what init does with its sets."""
    with _changing:
        try:
            if not isinstance(process_set, ProcessSet):
                process_set = ProcessSet(process_set)
            process_set.take_ranks(context.world.comm)
            if process_set.mpi_comm is not None and not process_set.ranks:
                raise InvalidRequestError("MPI.COMM_NULL has no members: expected the ranks of the set")
            number = process_set.process_set_id
            if process_set is global_process_set or (number is not None and context.sets.get(number) is process_set):
                raise InvalidRequestError(f"{process_set} is registered already")
            ranks = process_set.ranks or list(range(context.size))
            array = _array_of(ranks)  # an address alone would not keep it
            handle = ctypes.c_uint64()
            status = native.Status()
            code = context.library.hvd_add_process_set(
                context.pointer,
                ctypes.addressof(array),
                len(ranks),
                ctypes.addressof(handle),
                ctypes.addressof(status),
            )
            if code != native.OK:
                context.raise_failure(code, status)
        except LOCAL_ERRORS as error:
            context.refuse_as("add_process_set", "add_process_set", error, 0)
        number = Operation(context, handle, None, None, number_given).wait()
        _enter(context, process_set, number, ranks)
        return process_set


def take_for_all(context: Context, process_set: ProcessSet) -> None:
    """Registers a set that has all ranks of this world, though not of every one: here it is the global set."""
    _enter(context, process_set, 0, list(range(context.size)))


def _enter(context: Context, process_set: ProcessSet, number: int, ranks: list[int]) -> None:
    process_set.ranks = ranks
    process_set.process_set_id = number
    process_set.lasting = context.library.hvd_lasting_number(ctypes.addressof(_array_of(ranks)), len(ranks))
    context.enter_set((number, process_set.lasting), process_set, ranks)


def _array_of(ranks: list[int]) -> Any:
    return (ctypes.c_int32 * len(ranks))(*ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away; its object is not registered any more.

    All ranks must call it; blocks until all have called it. Returns False for the global set and for a set that is not
    registered. Raises ValueError for anything but a ProcessSet, HorovodInternalError if the ranks disagree, or an
    operation is in flight in the set.
    """
    context = contexts.current()
    check_process_set(process_set)
    number = process_set.process_set_id
    if process_set is global_process_set or number is None or context.sets.get(number) is not process_set:
        return False
    _check_dynamic(context, "remove_process_set")
    with _changing:
        handle = ctypes.c_uint64()
        status = native.Status()
        code = context.library.hvd_remove_process_set(
            context.pointer, number, ctypes.addressof(handle), ctypes.addressof(status)
        )
        if code != native.OK:
            context.raise_failure(code, status)
        Operation(context, handle, None, None, None).wait()
        context.leave_set(number)
        return True


def _check_dynamic(context: Context, function: str) -> None:
    if not context.dynamic_process_sets:
        raise InvalidRequestError(
            f"{function}: the process sets of this job are fixed\n"
            "hint: call init(process_sets='dynamic') or set HOROVOD_DYNAMIC_PROCESS_SETS=1 on all ranks"
        )


def told_in(process_set: ProcessSet | None) -> int:
    """The process set whose members wait for the failed call; the global set if the call names none."""
    try:
        return number_of(process_set)
    except InvalidRequestError:
        return 0
