# SPDX-License-Identifier: Apache-2.0
"""DistributedTrainer, for Gluon: step 1 of a gradient's way."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from horovod.core.arrays import operations
from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Max, Min
from horovod.core.process_sets import ProcessSet, global_process_set, speaks
from horovod.core.tracebacks import warn
from horovod.gradients.options import ReductionOptions
from horovod.gradients.recording import refuse_profile
from horovod.gradients.replica_check import ReplicaCheck
from horovod.gradients.step_check import StepCheck
from horovod.mxnet.compression import Compression
from horovod.mxnet.gradients import average, options_of, see
from horovod.mxnet.optimizer import DistributedOptimizer, check_groups
from horovod.mxnet.replicas import of_parameters, of_trainer

__all__ = ["DistributedTrainer"]


# Of gluon.Trainer, with what stands in their place.
_OF_GLUON = {
    "kvstore": "Horovod reduces the gradients, and MXNet's key-value store has no part in it",
    "update_on_kvstore": "each rank updates its own weights, and there is no key-value store that could",
    "compression_params": "they belong to the key-value store; compression=hvd.Compression.fp16 compresses gradients",
}


def _refuse(keywords: dict[str, Any]) -> None:
    for name in keywords:
        if name in _OF_GLUON:
            raise TypeError(f"DistributedTrainer does not take {name}: {_OF_GLUON[name]}\nhint: leave it out")
        raise TypeError(f"DistributedTrainer got an unexpected keyword argument {name!r}")


class DistributedTrainer(mx.gluon.Trainer):
    """A Gluon trainer whose step() averages the gradients over the ranks of `process_set` before it updates.

    step(batch_size) divides by the batch size of one rank. params: as of mx.gluon.Trainer; ranks' gradients meet by
    their place in it. compression: what travels. gradient_predivide_factor f: gradients are scaled by 1/f before and
    f / size after the sum. prefix: before the gradients' names, different for each of several trainers. num_groups:
    gradients are reduced in so many parts, each as a whole. Gradients can be read between allreduce_grads() and
    update(). Raises ValueError for options that cannot be.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        **refused: Any,
    ) -> None:
        _refuse(refused)
        self._hvd_options = ReductionOptions.among(locals())
        check_groups(num_groups)
        refuse_profile("MXNet")
        if isinstance(optimizer, DistributedOptimizer):
            if speaks(process_set):
                warn("DistributedTrainer does what DistributedOptimizer does: the wrapped optimizer is used")
            optimizer = optimizer._optimizer
        listed = params.values() if hasattr(params, "values") else params
        self._hvd_places = {id(parameter): place for place, parameter in enumerate(listed)}
        self._hvd_prefix = prefix or ""
        self._hvd_is_reduced = False
        label = f"the trainer {self._hvd_prefix}".rstrip()
        self._hvd_check = ReplicaCheck(label, process_set)
        self._hvd_step_check = StepCheck(label, label, process_set)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise InvalidRequestError(
                f"the parameters are on {len(self._contexts)} devices, {', '.join(map(str, self._contexts))}: expected "
                "one\nhint: start a process for each device"
            )

    def allreduce_grads(self) -> None:
        """Averages the gradients; for scripts that change them before update()."""
        super().allreduce_grads()
        self._hvd_is_reduced = True

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """The update alone, after allreduce_grads()."""
        self._hvd_warn(not self._hvd_is_reduced, "update() without allreduce_grads(): each rank uses its own gradients")
        self._hvd_is_reduced = False
        if ignore_stale_grad and (differing := self._hvd_fresh()[1]):
            raise InvalidRequestError(
                f"DistributedTrainer: update(ignore_stale_grad=True): backward has computed the gradient of "
                f"{differing[0].name} on some ranks only, and allreduce_grads() has averaged it with old ones\n"
                "hint: step(ignore_stale_grad=True) takes zeros for these"
            )
        super().update(batch_size, ignore_stale_grad)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Averages the gradients, and updates."""
        self._hvd_warn(self._hvd_is_reduced, "step() after allreduce_grads(): the gradients are averaged twice")
        self._hvd_is_reduced = False
        if ignore_stale_grad:
            for parameter in self._hvd_fresh()[0]:
                parameter.data()._fresh_grad = True
                parameter.grad()[:] = 0
        super().step(batch_size, ignore_stale_grad)

    def _hvd_fresh(self) -> tuple[list[Any], list[Any]]:
        """The parameters whose gradients are new on other ranks, and not on this one; those that differ among ranks."""
        process_set = self._hvd_options.process_set
        if not process_set.has_peers():
            return [], []
        trained = self._hvd_trained()
        mine = np.array([parameter.data()._fresh_grad for parameter in trained], np.uint8)
        name = f"{self._hvd_prefix}fresh"
        most = operations.allreduce(mine, op=Max, name=name, process_set=process_set)
        least = operations.allreduce(mine, op=Min, name=f"{name}.least", process_set=process_set)
        missing = [one for one, new, any_new in zip(trained, mine, most, strict=True) if any_new and not new]
        return missing, [one for one, low, high in zip(trained, least, most, strict=True) if low != high]

    def _hvd_trained(self) -> list[Any]:
        trained = [parameter for parameter in self._params if parameter.grad_req != "null"]
        return sorted(trained, key=lambda parameter: self._hvd_places[id(parameter)])

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._hvd_check.is_due():
            is_whole = self._hvd_check.is_whole
            parts = [*of_parameters(self._hvd_trained(), whole=is_whole)]
            self._hvd_check.compare([*(of_trainer(self) if is_whole else ()), *parts])
        super()._update(ignore_stale_grad)

    def _hvd_warn(self, is_wrong: bool, text: str) -> None:
        process_set = self._hvd_options.process_set
        if is_wrong and process_set.has_peers() and speaks(process_set):
            hint = "hint: call step(), or allreduce_grads() and then update()"
            warn(f"DistributedTrainer: {text}\n{hint}")

    def _allreduce_grads(self) -> None:
        """Reduces the gradients; step() and allreduce_grads() of Gluon's trainer call this."""
        trained = self._hvd_trained()
        names = [f"{self._hvd_prefix}gradient.{self._hvd_places[id(parameter)]}" for parameter in trained]
        gradients = [parameter.list_grad()[0] for parameter in trained]
        is_due = bool(names) and self._hvd_step_check.begin()
        see(self._hvd_step_check, names, gradients)
        average(self._hvd_options, names, gradients)
        if is_due:
            gradients[-1].wait_to_read()  # so the others have begun this step, and ended the one before
        if names:
            self._hvd_step_check.end(lambda: options_of(self._optimizer))
