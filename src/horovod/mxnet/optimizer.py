# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer, for Module and for loops of one's own: step 1 of a gradient's way.

MXNet's engine averages a gradient when it is computed, and updates the weight after that; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import shown
from horovod.gradients.options import ReductionOptions
from horovod.gradients.recording import refuse_profile
from horovod.gradients.step_check import StepCheck
from horovod.mxnet.gradients import average, options_of, see

__all__ = ["DistributedOptimizer"]

_OWN = ("_optimizer", "_options")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages gradients over the ranks of `process_set` before it updates weights.

    All else is the wrapped optimizer's: what is read from this one or set on it is the other's. On ranks that are not
    in the set it works as if it were not wrapped. gradient_predivide_factor f: gradients are scaled by 1/f before and
    f / size after the sum. num_groups: the gradients that are given in one update are reduced in so many parts, each as
    a whole. With Gluon use DistributedTrainer. Raises ValueError for options that cannot be, TypeError for anything but
    an optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        options = ReductionOptions.among(locals())
        check_groups(num_groups)
        refuse_profile("MXNet")
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer: expected an mxnet.optimizer.Optimizer, got {shown(optimizer)}")
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidRequestError(
                "the optimizer is a DistributedOptimizer already: gradients would be reduced twice"
            )
        self.__dict__.update(_optimizer=optimizer, _options=options)

    def __getattr__(self, item: str) -> Any:
        if item in _OWN:  # while it is copied or unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __setattr__(self, item: str, value: Any) -> None:
        setattr(self._optimizer, item, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _OWN}  # the base class leaves out what this one does not have

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradient, or a list of them, in place, and updates."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradient, or a list of them, in place, and updates."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def _average(self, index: Any, gradient: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (index, gradient) if several else ([index], [gradient])
        names = [f"gradient.{each}" for each in indices]
        check = self._step_check(names, gradients)
        see(check, names, gradients)
        average(self._options, names, gradients)

    def _step_check(self, names: list[str], gradients: Sequence[Any]) -> StepCheck:
        """The check, whose next step begins when a gradient comes again."""
        if "_check" not in self.__dict__:  # nor is it after a copy
            label = "DistributedOptimizer"
            self.__dict__.update(_check=StepCheck(label, label, self._options.process_set), _given=set(), _used=[])
        check, given = self.__dict__["_check"], self.__dict__["_given"]
        begins_again = not given.isdisjoint(names)
        if begins_again:
            if check.is_due:
                gradients[0].wait_to_read()  # the last step's are reduced, so the others have ended the one before
            check.end(lambda: self.__dict__["_used"])
            given.clear()
        if not given and check.begin():
            self.__dict__["_used"] = list(options_of(self._optimizer))
        given.update(names)
        return check  # type: ignore[no-any-return]

    def set_learning_rate(self, lr: float) -> None:
        """The wrapped optimizer's."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """The wrapped optimizer's."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """The wrapped optimizer's."""
        self._optimizer.set_wd_mult(args_wd_mult)


def check_groups(num_groups: Any) -> None:
    """Raises ValueError for a number of groups that cannot be."""
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise InvalidRequestError(f"num_groups={shown(num_groups)}: expected a number of groups, or 0")
