# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer(op=Adasum): each rank takes its own step, and Adasum combines the changes of the parameters.

Gradients are never reduced, so clipping and momentum are each rank's own. backward_passes_per_step has no effect:
step() uses whatever has been accumulated. All ranks must call step() equally often. A GradScaler would skip the step
only on the rank that overflows, so unscaling and skipping are done here, for all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from horovod.core import context as contexts
from horovod.core.collectives import Reduction
from horovod.core.compression import Compressor, compressed
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Adasum, Max
from horovod.core.process_sets import ProcessSet
from horovod.core.requests import check_adasum_ranks
from horovod.core.wording import quoted
from horovod.gradients.options import ReductionOptions, check_passes
from horovod.gradients.reducer import Waitable
from horovod.gradients.step_check import StepCheck
from horovod.torch.parameter_gradients import sample_of
from horovod.torch.replicas import options_of
from horovod.torch.tensors import collectives
from horovod.torch.wrapping import Wrapped, find_duplicates, is_trainable, wrapped_as

__all__ = ["AdasumOptimizer", "adasum_optimizer"]

_USED = ("op", "compression", "process_set")
# step() uses what has been accumulated; the ranks' moves are dense; results do not depend on groups.
_WITHOUT_EFFECT = ("backward_passes_per_step", "groups", "sparse_as_dense")


class AdasumOptimizer(Wrapped):
    """Mixed in before the optimizer's class. Its attributes begin with `_hvd_`."""

    grad_scale: Tensor | None
    found_inf: Tensor | None
    _hvd_names: dict[Tensor, str]
    _hvd_compression: type[Compressor]
    _hvd_process_set: ProcessSet
    _hvd_active: bool
    _hvd_check: StepCheck
    find_duplicates = staticmethod(find_duplicates)
    # torch.amp.GradScaler calls step() in any case then, with the attributes grad_scale (None if the gradients are
    # unscaled already) and found_inf.
    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's own step, then combines the changes of all ranks by Adasum.

        The parameters become their old values plus the combined changes. If that fails, they get their old values back,
        and the error is raised. Under a GradScaler, no rank takes a step if one has an overflow.
        """
        if self._hvd_overflows():
            return None
        if not self._hvd_active:
            return super().step(closure)  # type: ignore[misc]
        trained = list(self._hvd_trained())
        starts = [parameter.detach().clone() for _, parameter in trained]
        result = super().step(closure)  # type: ignore[misc]
        self._hvd_check.begin()
        with torch.no_grad():
            self._hvd_combine(trained, starts)
        if trained:
            self._hvd_check.end(lambda: options_of(self))
        return result

    @torch.no_grad()
    def _hvd_overflows(self) -> bool:
        """Unscales, if a GradScaler left that to step(), and says whether the gradients of any rank overflow."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return False
        if self.grad_scale is not None:
            for gradient in [parameter.grad for _, parameter in self._hvd_trained() if parameter.grad is not None]:
                gradient.div_(self.grad_scale)
        self.grad_scale = self.found_inf = None  # that is done
        if self._hvd_active:
            how = (Max, None, 1.0, 1.0, self._hvd_process_set)
            found = collectives.allreduce(found, "overflow", how, True).wait()
        return bool(found)

    def _hvd_trained(self) -> Iterator[tuple[str, Tensor]]:
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad and is_trainable(parameter):
                    yield self._hvd_names.get(parameter, f"{group_index}.{index}"), parameter

    def _hvd_start(self, delta: Tensor, name: str, how: Reduction) -> tuple[Waitable, Any]:
        tell = functools.partial(collectives.tell, "allreduce", name, process_set=self._hvd_process_set)
        ((sent, ctx),) = compressed([delta], self._hvd_compression, tell)
        return collectives.allreduce(sent, name, how, True), ctx

    def _hvd_combine(self, trained: list[tuple[str, Tensor]], starts: list[Tensor]) -> None:
        contexts.note_gradients()
        how = (Adasum, None, 1.0, 1.0, self._hvd_process_set)
        started: list[tuple[Waitable, Any]] = []
        first_error: Exception | None = None
        for (name, parameter), start in zip(trained, starts, strict=True):
            try:
                delta = parameter - start
                self._hvd_check.see(name, functools.partial(sample_of, delta), functools.partial(_is_finite, delta))
                started.append(self._hvd_start(delta, f"delta.{name}", how))
            except Exception as error:
                # The peers wait for the rest.
                first_error = first_error or error
        deltas = []
        for operation, ctx in started:
            try:
                deltas.append(self._hvd_compression.decompress(operation.wait(), ctx))
            except Exception as error:
                # The others are still being written to.
                first_error = first_error or error
        for index, ((_, parameter), start) in enumerate(zip(trained, starts, strict=True)):
            parameter.copy_(start if first_error is not None else start + deltas[index])
        if first_error is not None:
            raise first_error

    def synchronize(self) -> None:
        """Nothing is in flight between two steps."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward never reduces anything."""
        yield

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Kept for old scripts: step() combines what each rank's own step has changed, inside as well."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Checked, otherwise ignored: step() uses what has been accumulated."""
        check_passes(passes)


def _is_finite(delta: Tensor) -> bool:
    return bool(delta.isfinite().all())


def adasum_optimizer(optimizer: torch.optim.Optimizer, names: dict[Tensor, str], options: ReductionOptions) -> Any:
    """Wraps the optimizer.

    Raises ValueError for an option that Adasum does not know, NotImplementedError if the set's size is not a power of
    two.
    """
    for field in dataclasses.fields(options):
        if field.name not in _USED + _WITHOUT_EFFECT and getattr(options, field.name) != field.default:
            raise InvalidRequestError(f"{field.name} is not for op=Adasum")
    process_set = options.process_set
    active = process_set.may_have_peers()
    if active:
        check_adasum_ranks(process_set.size() or 0)
    wrapped = wrapped_as(optimizer, AdasumOptimizer)
    wrapped._hvd_names = names
    wrapped._hvd_compression = options.compression
    wrapped._hvd_process_set = process_set
    wrapped._hvd_active = active
    first = min(names.values(), default="0.0")
    wrapped._hvd_check = StepCheck(f"delta.{first}", f"the optimizer that updates {quoted(first)}", process_set)
    return wrapped
