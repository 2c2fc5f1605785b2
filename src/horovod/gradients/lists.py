# SPDX-License-Identifier: Apache-2.0
"""How a list of gradients becomes the ranks' average (step 2 of a gradient's way).

For frameworks that have all gradients in a list: TensorFlow's tape, and the optimizers of Keras. Imports no framework:
a subclass says how tensors are reduced. (PyTorch's gradients come one by one: gradients/reducer.py.)

The ranks' gradients meet by their place in the list, not by their variables' names: Keras numbers layers by what a
process has built before, which may differ. The name holds a sum over all shapes, so that two models of one program do
not take each other's place. The native core knows such names (native/negotiation/gradient_lists.h): ranks that wait for
each other in different lists have different models.
"""

from __future__ import annotations

import abc
import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from horovod.core import context as contexts
from horovod.core.compression import compressed
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, speaks
from horovod.core.requests import check_adasum_ranks
from horovod.core.tracebacks import warn
from horovod.gradients.options import ReductionOptions, check_groups
from horovod.gradients.recording import NO_ADASUM, recorder_of_list
from horovod.gradients.step_check import Options, StepCheck, given, step_check
from horovod.gradients.watched import MOST_OPTIONS, Watched, watched

__all__ = ["GradientList", "local_variables"]


# The name of what has reduced gradients that no optimizer has applied yet: by their shapes, hashes of the variables if
# those are known, and the process set.
_not_applied: dict[tuple[str, frozenset[int], ProcessSet], str] = {}


class GradientList(abc.ABC):
    """Averages gradients over the ranks of a process set.

    `name`: that of the optimizer or tape, if the options have none. even_alone: reduces in a job of one rank, too, for
    measurements. is_applied: the reduced gradients go to an optimizer's update at once, not to the script. Raises
    ValueError for groups that cannot be.
    """

    def __init__(
        self,
        options: ReductionOptions,
        name: str = "gradients",
        even_alone: bool = False,
        is_applied: bool = True,
    ) -> None:
        self._is_applied = is_applied
        self.options = options
        self.name = options.name or name
        self.even_alone = even_alone
        self._local: set[Any] = set()
        self.watched_options: Options | None = None  # what must be equal on all ranks
        self.watch: Watched | None = None  # of the step that is being compiled
        check_groups(options.groups, "variable", lambda member: hasattr(member, "assign"), self.key_of)
        if options.is_adasum and contexts.is_initialized():
            check_adasum_ranks(options.process_set.size() or 1)

    # Supplied by a framework's package.

    @abc.abstractmethod
    def key_of(self, variable: Any) -> Any:
        """The identity of a variable, as a dictionary's key."""

    @abc.abstractmethod
    def is_sparse(self, gradient: Any) -> bool:
        """True if it has indices and values."""

    @abc.abstractmethod
    def to_dense(self, gradient: Any) -> Any:
        """A tensor of any gradient."""

    @abc.abstractmethod
    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        """The reduction of a sparse gradient."""

    @abc.abstractmethod
    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        """The reductions of `tensors`, compressed already; each list of positions in `grouped` as a whole."""

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:  # noqa: B027
        """Tells the others, in reduce_dense with these arguments, that this rank does not come.

        Does nothing while a step is compiled: no rank waits yet.
        """

    def members(self) -> Any:
        """The number of ranks: a number, or a tensor if later runs of what is compiled now may have another one."""
        return self.options.process_set.size() or 1

    def divided(self, gradient: Any, divisor: Any) -> Any:
        """A gradient, sparse or dense, divided by what members() gives."""
        return gradient / divisor

    def unique(self, name: str) -> str:
        """`name`, made different from others that may be in flight at the same time."""
        return name

    def when_ready(self, gradient: Any, act: Callable[[int], None]) -> Any:
        """The gradient, sparse or dense; act(its bytes) is called when it has its value, in each run."""
        raise NotImplementedError

    def device(self) -> str:
        """Where steps are computed: "cpu" or "gpu"."""
        raise NotImplementedError

    def is_eager(self) -> bool:
        """True if gradients have values now; False while a step is compiled, or a graph is built."""
        return True

    def sample(self, gradient: Any) -> Any:
        """A few elements of a gradient that has a value, as step_check.sampled takes them."""
        raise NotImplementedError

    def is_finite(self, gradient: Any) -> bool:
        """True if all elements of a gradient that has a value are."""
        raise NotImplementedError

    def name_of(self, index: int, variables: Sequence[Any] | None) -> str:
        """The name of a gradient in texts: its place, and its variable's name if it has one."""
        variable = None if variables is None else variables[index]
        label = getattr(variable, "path", None) or getattr(variable, "name", None)
        return f"{index}: {label}" if label else str(index)

    def watching_library(self) -> Any:
        """The native shim that submits the gradients of compiled steps; None if it cannot look at them."""
        return None

    def options_tensor(self, values: Sequence[Any]) -> Any:
        """The values of options as a tensor of float32, in a step that is compiled."""
        raise NotImplementedError

    # Common to all frameworks.

    def register_local(self, variable: Any) -> None:
        """The gradient of `variable` is not reduced: every rank trains its own."""
        self._local.add(self.key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return bool(self._local) and self.key_of(variable) in self._local

    @property
    def is_active(self) -> bool:
        """True if this rank takes part and has peers, or reduces even alone."""
        process_set = self.options.process_set
        return process_set.may_have_peers() or (self.even_alone and process_set.included())

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The reduced gradients, in order; None stays None. `variables`: needed for groups and local ones."""
        results = list(gradients)
        if contexts.is_initialized() and contexts.current().trains_apart:
            return self._recorded(results, variables)
        if not self.is_active:
            return results
        members = self.members() if self._local else 1
        reduced = []
        for index, gradient in enumerate(results):
            if gradient is None:
                continue
            if variables is not None and self.is_local(variables[index]):
                if self.options.scale_local_gradients:
                    results[index] = self.divided(gradient, members)
                continue
            if self.options.sparse_as_dense or not self.is_sparse(gradient):
                results[index] = self.to_dense(gradient)
            reduced.append(index)
        of = [] if variables is None else [variables[index] for index in reduced]
        contexts.note_gradients()
        self._watch_double([results[index] for index in reduced], of)
        name = self.unique(self._name_of([results[index] for index in reduced]))
        own_name = self.list_name([results[index] for index in reduced])
        check = self._seen(own_name, results, reduced, variables) if reduced and self.is_eager() else None
        dense = [index for index in reduced if not self.is_sparse(results[index])]
        for index in set(reduced) - set(dense):
            results[index] = self.reduce_sparse(results[index], f"{name}.{index}")
        if dense:
            grouped = self._grouped(dense, variables)
            tell = functools.partial(self.tell, grouped, name)
            pairs = compressed((results[index] for index in dense), self.options.compression, tell)
            sent = [tensor for tensor, _ in pairs]
            self.watch = None
            if not self.is_eager() and not self.options.is_adasum:
                labels = [self.name_of(index, variables) for index in dense]
                self._watch(own_name, labels, sent, grouped)
            received = self.reduce_dense(sent, grouped, name)
            for index, tensor, (_, ctx) in zip(dense, received, pairs, strict=False):  # options may follow
                results[index] = self.options.compression.decompress(tensor, ctx)
        if check is not None:
            check.end(self.watched_options)
        return results

    def _seen(
        self, name: str, gradients: Sequence[Any], places: Sequence[int], variables: Sequence[Any] | None
    ) -> StepCheck:
        """The check of a step whose gradients have values, which it has seen."""
        check = step_check(name, self._label(), self.options.process_set)
        if check.begin():
            for index in places:
                gradient = gradients[index]
                look = functools.partial(self.sample, gradient), functools.partial(self.is_finite, gradient)
                check.see(str(index), *look, label=self.name_of(index, variables))
        return check

    def _label(self) -> str:
        return "the optimizer" if self.name == "optimizer" else self.name

    def _watch(self, name: str, labels: Sequence[str], sent: list[Any], grouped: list[list[int]]) -> None:
        """Has the gradients of a compiled step looked at when they are submitted; adds the options to them."""
        library = self.watching_library()
        if library is None:
            return
        has_options = self.watched_options is not None
        options = given(self.watched_options, self._label(), warn)[:MOST_OPTIONS]
        names = [key for key, _ in options] if has_options else None
        self.watch = watched(library, name, self._label(), self.options.process_set, labels, names)
        if self.watch is not None and has_options:
            # Of one shape, however many options there are: ranks that differ in this reduce as before.
            grouped[-1].append(len(sent))
            sent.append(self.options_tensor([*(value for _, value in options), *[0.0] * (MOST_OPTIONS - len(options))]))

    def _recorded(self, gradients: list[Any], variables: Sequence[Any] | None) -> list[Any]:
        """The rank's own gradients, of a job that is profiled."""
        if self.options.is_adasum:
            raise InvalidRequestError(NO_ADASUM)
        due = []
        for index, gradient in enumerate(gradients):
            if gradient is None or (variables is not None and self.is_local(variables[index])):
                continue
            if self.options.sparse_as_dense or not self.is_sparse(gradient):
                gradients[index] = self.to_dense(gradient)
            due.append(index)
        name = GradientList.list_name(self, [gradients[index] for index in due])
        recorder = recorder_of_list(name, self.device())
        if recorder is None:
            return gradients
        for index in due:
            gradient = gradients[index]
            dtype = str(getattr(gradient.dtype, "name", gradient.dtype)).removeprefix("torch.")
            label, is_sparse = GradientList.name_of(self, index, variables), self.is_sparse(gradient)
            act = functools.partial(recorder.ready, label, dtype, len(due), is_sparse=is_sparse)
            gradients[index] = self.when_ready(gradient, act)
        return gradients

    def _name_of(self, gradients: Sequence[Any]) -> str:
        """The name under which the ranks meet."""
        return self.list_name(gradients)

    def list_name(self, gradients: Sequence[Any]) -> str:
        """A name of the list, with a checksum of what must be equal on all ranks."""
        return f"{self.name}/list-{zlib.crc32(_described(gradients).encode()):08x}"

    def _watch_double(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Warns if an optimizer reduces gradients that a tape has just reduced.

        Without variables: gradients of the same shapes.
        """
        described = _described(gradients)
        key = (described, frozenset(hash(self.key_of(variable)) for variable in variables), self.options.process_set)
        if not self._is_applied:
            _not_applied[key] = self.name
            return
        before = _not_applied.pop(key, None) if described else None
        if before is not None and speaks(self.options.process_set):
            again = "" if self.options.op == Average else ": their sum grows with the number of ranks"
            warn(
                f"{self.name} reduces gradients that {before} seems to have reduced already{again}\n"
                "hint: use one of the two, with a plain optimizer or a plain tape"
            )

    def _grouped(self, dense: list[int], variables: Sequence[Any] | None) -> list[list[int]]:
        """Positions in `dense` that are reduced as one. Without groups: each alone."""
        positions = list(range(len(dense)))
        wanted = self.options.groups
        if not wanted:
            return [[position] for position in positions]
        if isinstance(wanted, int):
            count = min(wanted, len(positions))
            ends = [len(positions) * index // count for index in range(count + 1)]
            return [positions[start:end] for start, end in itertools.pairwise(ends)]
        if variables is None:
            raise InvalidRequestError("groups of variables need the variables that the gradients belong to")
        position_of = {self.key_of(variables[index]): position for position, index in enumerate(dense)}
        groups = []
        for group in wanted:
            keys = [self.key_of(variable) for variable in group]
            groups.append(sorted(position_of[key] for key in keys if key in position_of))
        taken = set(itertools.chain.from_iterable(groups))
        return [group for group in groups if group] + [[position] for position in positions if position not in taken]


def _described(gradients: Sequence[Any]) -> str:
    return ";".join(f"{gradient.dtype}{gradient.shape}" for gradient in gradients)


def local_variables(local_layers: Any) -> list[Any]:
    """The trainable variables of a Keras layer or a list of layers.

    Raises ValueError for anything else, and for a layer that is not built.
    """
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise InvalidRequestError(f"local_layers: expected Keras layers, got {type(layer).__name__}")
        if not getattr(layer, "built", True):
            raise InvalidRequestError(
                f"local_layers: layer `{layer.name}` has no variables yet\nhint: build the model first"
            )
    return [variable for layer in layers for variable in layer.trainable_weights]
