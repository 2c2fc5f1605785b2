# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: step 1 of a gradient's way. Backward fires a hook per parameter, which starts its reduction.

All reductions are awaited at the end of backward(), by autograd's end-of-graph callback, so that clipping, GradScaler
and step() see reduced gradients.

If a whole training step is given to torch.compile, the code here stays Python: the compiler would take it apart.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from horovod.core.compression import Compressor, compressing
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import counted, quoted, shown
from horovod.gradients.options import ReductionOptions, check_groups, check_passes
from horovod.gradients.recording import NO_ADASUM, Apart, is_profiled
from horovod.gradients.reducer import GradientReducer
from horovod.gradients.replica_check import Part, ReplicaCheck
from horovod.gradients.step_check import StepCheck
from horovod.torch.adasum_optimizer import AdasumOptimizer, adasum_optimizer
from horovod.torch.compression import Compression
from horovod.torch.parameter_gradients import ParameterGradients
from horovod.torch.recording import recorder_of_parameters
from horovod.torch.replicas import of_state, of_tensor, options_of
from horovod.torch.wrapping import Wrapped, find_duplicates, is_trainable, wrapped_as

__all__ = ["DistributedOptimizer"]


class _EndOfBackward:
    """Called by autograd at the end of the backward that owns it.

    The object lives as long as its backward; while it exists, that backward runs. A nested backward (activation
    checkpointing) belongs to the outer one, whose end is awaited from the moment the nested one's node is done;
    `between`: that moment has not come yet.
    """

    def __init__(self, reducer: GradientReducer[Tensor, Tensor]) -> None:
        self._reducer = reducer
        self.over = self.between = False
        self._hook: Any = None

    def queue(self) -> None:
        """Has this called at the end of the backward that runs now."""
        Variable._execution_engine.queue_callback(self)

    @torch._disable_dynamo
    def __call__(self) -> None:
        # At the end of a nested backward the node of the outer one that has called it is still at work.
        node = torch._C._current_autograd_node()
        if node is None:
            self.over = True
            self._reducer.finish()
        else:
            self.between = True
            self._hook = node.register_hook(self._go_on)

    @torch._disable_dynamo
    def _go_on(self, *gradients: Any) -> None:
        self._hook.remove()
        self.between = False
        self.queue()


class _DistributedOptimizer(Wrapped):
    """Mixed in before the optimizer's class. Its attributes begin with `_hvd_`."""

    _hvd_reducer: GradientReducer[Tensor, Tensor]
    _hvd_numbers: dict[Tensor, int]
    _hvd_names: dict[Tensor, str]
    _hvd_taken: dict[str, Tensor]
    _hvd_process_set: ProcessSet
    _hvd_check: ReplicaCheck
    _hvd_active: bool
    find_duplicates = staticmethod(find_duplicates)
    _hvd_backward: Callable[[], _EndOfBackward | None]

    def _hvd_register(self) -> None:
        """Gives every parameter that is not registered yet its name and its hook."""
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter in self._hvd_numbers or not is_trainable(parameter):
                    continue
                name = self._hvd_free_name(self._hvd_names.get(parameter, f"{group_index}.{index}"), parameter)
                self._hvd_numbers[parameter] = self._hvd_reducer.add(name, parameter)
                if self._hvd_active:
                    # A frozen parameter may be trained later; torch takes hooks for trained ones only, and keeps them.
                    trained = parameter.requires_grad
                    parameter.requires_grad_(True)
                    parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self)))
                    parameter.requires_grad_(trained)

    def _hvd_free_name(self, name: str, parameter: Tensor) -> str:
        """Gives `name`, unless another optimizer reduces another parameter under it.

        Two optimizers may be in one backward, and ranks meet by name. Ranks that wrap their optimizers in the same
        order choose the same names.
        """

        def is_taken() -> bool:
            used = [one._hvd_taken for one in list(_living) if one._hvd_process_set is self._hvd_process_set]
            return any(taken.get(chosen, parameter) is not parameter for taken in used)

        chosen = name
        if self._hvd_active and is_taken():
            gc.collect()  # an optimizer that is not used any more must not count on some ranks only
            number = 0
            while is_taken():
                number += 1
                chosen = f"optimizer{number}.{name}"
        self._hvd_taken[chosen] = parameter
        return chosen

    def _hvd_ready(self, parameter: Tensor) -> None:
        self._hvd_join_backward()
        self._hvd_reducer.ready(self._hvd_numbers[parameter])

    def _hvd_join_backward(self) -> None:
        # Not in _hvd_ready: if that raises, its traceback would keep the end of a finished backward alive.
        running = self._hvd_backward()
        if running is not None and not running.over and not running.between:
            return
        # Between: the next nested backward of one node, unless that node has raised since.
        if running is None or running.over:
            self._hvd_check_idle("backward()")
        end = _EndOfBackward(self._hvd_reducer)
        self._hvd_backward = weakref.ref(end)
        end.queue()

    def _hvd_check_idle(self, call: str) -> None:
        names = self._hvd_reducer.in_flight
        if names:
            raise AssertionError(
                f"{call} was called before the reduction of {counted(len(names), 'gradient')} was complete, first "
                f"{quoted(names[0])}: the last backward() has not returned, or it raised\n"
                "hint: synchronize() completes that step with zeros for missing gradients"
            )

    @torch._disable_dynamo
    def synchronize(self) -> None:
        """Waits for reductions in flight. Kept for old scripts: the end of backward() has done it already."""
        if self._hvd_active:
            self._hvd_reducer.complete_step()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Kept for old scripts: step() never reduces what has been reduced."""
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate on this rank and do not count as passes of the step.

        The next pass outside, or step(), reduces the sum. All ranks must use it for the same passes.
        """
        before, self._hvd_reducer.paused = self._hvd_reducer.paused, True
        try:
            yield
        finally:
            self._hvd_reducer.paused = before

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes after which gradients are reduced; counting starts again."""
        check_passes(passes)
        self._hvd_reducer.passes_per_step = passes
        self._hvd_reducer.begin_step()

    @torch._disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step.

        Gradients that no backward has reduced (set by hand, or from too few passes) are reduced first. With a closure,
        they are reduced after each call of it. An optimizer that decides by the closure's loss, such as LBFGS, decides
        on each rank separately, unless the closure returns the average of the ranks' losses.
        """
        if self._hvd_active:
            # Not before the gradients are reduced: other ranks may wait for these in backward().
            check = self._hvd_check if self._hvd_check.is_due() else None
            if closure is None:
                self._hvd_complete(check)
            else:
                closure = self._hvd_completing(closure, check)
        result = super().step(closure)  # type: ignore[misc]
        self._hvd_reducer.begin_step()
        if self._hvd_reducer.recorder is not None:
            self._hvd_reducer.recorder.updated()
        return result

    def _hvd_complete(self, check: ReplicaCheck | None) -> None:
        self._hvd_reducer.complete_step()
        if check is not None:
            check.compare(self._hvd_described(check.is_whole))

    def _hvd_described(self, is_whole: bool) -> Iterator[Part]:
        for name, parameter in sorted(self._hvd_taken.items()):
            yield of_tensor(name, parameter, whole=is_whole)
        if is_whole:
            yield from of_state(self, {parameter: name for name, parameter in self._hvd_taken.items()})

    def _hvd_completing(self, closure: Callable[[], Any], check: ReplicaCheck | None) -> Callable[[], Any]:
        def evaluate() -> Any:
            nonlocal check
            loss = closure()
            self._hvd_complete(check)
            check = None  # a later call of a closure comes between changes of the parameters
            return loss

        return evaluate

    @torch._disable_dynamo
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's own. Raises AssertionError while reductions are in flight."""
        self._hvd_check_idle("zero_grad()")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        self._hvd_reducer.begin_step()
        if self._hvd_reducer.recorder is not None:
            self._hvd_reducer.recorder.zeroed()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The optimizer's own; the new parameters are reduced as well."""
        super().add_param_group(param_group)  # type: ignore[misc]
        if "_hvd_reducer" in self.__dict__:
            self._hvd_register()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copy and pickle: the copy would have neither hooks nor reducer, and ranks would drift apart."""
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled\n"
            "hint: save its state_dict(), or copy the optimizer before it is wrapped"
        )

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's own; counting of passes starts again."""
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]
        self._hvd_reducer.begin_step()


_living: weakref.WeakSet[_DistributedOptimizer] = weakref.WeakSet()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer so that gradients are reduced over the ranks of `process_set` during backward().

    On other ranks the optimizer stays as it is.

    named_parameters: as model.named_parameters(); names that all ranks share. Without it `<group>.<index>`.
    compression: what travels. backward_passes_per_step: passes that are summed locally before one reduction. op:
    Average, Sum, Min, Max, Product, or Adasum, which is another way of training (see adasum_optimizer.py): ranks step
    by themselves, and Adasum combines how far the parameters moved; backward_passes_per_step and sparse_as_dense have
    no effect then. gradient_predivide_factor f: gradients are scaled by 1/f before and f / size after the sum; needs
    op=Average. groups: checked, otherwise ignored. Fusion does not use it, and results do not depend on it. Sparse
    gradients (COO; op Average or Sum) are gathered and come back sparse and coalesced; sparse_as_dense: they are
    reduced as dense ones. Returns an instance of a subclass of the optimizer's class. Raises ValueError for arguments
    that do not fit together, TypeError for anything but an optimizer.
    """
    options = ReductionOptions.among(locals())
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: expected an instance of torch.optim.Optimizer, got {shown(optimizer)}")
    if isinstance(optimizer, (_DistributedOptimizer, AdasumOptimizer)):
        raise InvalidRequestError("the optimizer is a DistributedOptimizer already: gradients would be reduced twice")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = _checked_names(named_parameters, parameters)
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=2)
    _check_groups(options.groups, parameters)
    profiled = is_profiled()
    if options.is_adasum:
        if profiled:
            raise InvalidRequestError(NO_ADASUM)
        return adasum_optimizer(optimizer, names, options)

    wrapped = wrapped_as(optimizer, _DistributedOptimizer)
    gradients = ParameterGradients(options)
    start = Apart if profiled else compressing(gradients.start, options.compression, gradients.tell)
    passes = int(options.backward_passes_per_step)
    wrapped._hvd_reducer = GradientReducer(gradients, start, passes, reduces_again=op == Average)
    wrapped._hvd_reducer.recorder = recorder_of_parameters(parameters) if profiled else None
    wrapped._hvd_numbers = {}
    wrapped._hvd_names = names
    wrapped._hvd_taken = {}
    wrapped._hvd_process_set = process_set
    # One name, and not their number, which may differ between the ranks.
    name = f"the optimizer that updates {quoted(min(names.values()))}" if names else "an optimizer without parameters"
    wrapped._hvd_check = ReplicaCheck(name, process_set)
    wrapped._hvd_active = process_set.may_have_peers() or profiled
    wrapped._hvd_backward = lambda: None
    if wrapped._hvd_active:
        _living.add(wrapped)
    wrapped._hvd_register()
    if wrapped._hvd_active and not profiled and wrapped._hvd_taken:
        reference = weakref.ref(wrapped)
        wrapped._hvd_reducer.check = StepCheck(min(wrapped._hvd_taken), name, process_set)
        wrapped._hvd_reducer.options = lambda: options_of(reference())
    return wrapped


def _hook(reference: Callable[[], _DistributedOptimizer | None]) -> Callable[[Tensor], None]:
    # Weak: a hook that held its optimizer would live as long as the model, and reduce for an optimizer not in use.
    @torch._disable_dynamo
    def hook(parameter: Tensor) -> None:
        optimizer = reference()
        if optimizer is not None and not optimizer._hvd_retired:
            optimizer._hvd_ready(parameter)

    return hook  # type: ignore[no-any-return]


def _checked_names(named_parameters: Iterable[Any] | None, parameters: list[Tensor]) -> dict[Tensor, str]:
    if named_parameters is None:
        return {}
    pairs = list(named_parameters) if isinstance(named_parameters, Iterable) else [named_parameters]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidRequestError(
            "named_parameters: expected a sequence of tuples (name, parameter)\n"
            "hint: model.named_parameters() gives one"
        )
    twice = sorted(find_duplicates(name for name, _ in pairs))
    if twice:
        raise InvalidRequestError(f"named_parameters: names must be unique; these occur twice: {', '.join(twice)}")
    found = {parameter: name for name, parameter in pairs}
    missing = [index for index, parameter in enumerate(parameters) if parameter not in found]
    if missing:
        raise InvalidRequestError(
            f"named_parameters: {len(missing)} of the optimizer's {len(parameters)} parameters have no name, first "
            f"number {missing[0]} with shape {tuple(parameters[missing[0]].shape)}\nhint: pass model.named_parameters()"
        )
    return found


def _check_groups(groups: Any, parameters: list[Tensor]) -> None:
    known = set(parameters)
    for member in check_groups(groups, "parameter", lambda member: isinstance(member, Tensor), id, smallest=1):
        if member not in known:
            raise InvalidRequestError(
                f"groups: a tensor of shape {tuple(member.shape)} is not a parameter of this optimizer"
            )
