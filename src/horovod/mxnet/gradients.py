# SPDX-License-Identifier: Apache-2.0
"""How gradients become the ranks' average, for the optimizer and the trainer (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from horovod.common.util import split_list
from horovod.core import context as contexts
from horovod.core.compression import compressed
from horovod.core.native import ALLREDUCE
from horovod.gradients.options import ReductionOptions
from horovod.gradients.step_check import StepCheck, floats_of, sampled
from horovod.mxnet.ops import reduce
from horovod.mxnet.shim import new_step
from horovod.mxnet.tensors import collectives

__all__ = ["average", "options_of", "see"]


def see(check: StepCheck, names: Sequence[str], gradients: Sequence[Any]) -> None:
    """Shows gradients that are about to be averaged to a check whose step has begun. Waits for those it looks at."""
    if check.takes_samples or check.looks_for_nan:
        for name, gradient in zip(names, gradients, strict=True):
            look = functools.partial(_sample, gradient), functools.partial(_is_finite, gradient)
            check.see(name, *look)


def options_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The options of an optimizer, but for rescale_grad: batch sizes may differ."""
    yield "learning_rate", float(optimizer.learning_rate)
    for name, value in floats_of(optimizer):
        if name not in ("lr", "rescale_grad"):
            yield name, value


def _sample(gradient: Any) -> Any:
    return sampled(gradient.asnumpy().reshape(-1))


def _is_finite(gradient: Any) -> bool:
    return bool(np.isfinite(gradient.asnumpy()).all())


def average(options: ReductionOptions, names: Sequence[str], gradients: Sequence[Any]) -> None:
    """Averages gradients in place over the options' process set: MXNet does so once they are computed.

    The first ones are sent first among those that are ready: the next forward pass needs them first.
    """
    process_set = options.process_set
    if not gradients or not process_set.has_peers():
        return
    contexts.note_gradients()
    places = range(len(gradients))
    groups = [list(group) for group in split_list(places, min(options.groups or len(places), len(places)))]
    step = new_step(len(groups))
    for group in groups:
        label, name = "allreduce", names[group[0]]
        if options.groups:
            label, name = "grouped_allreduce", f"{name}to{names[group[-1]]}"

        def tell(error: Exception, label: str = label, name: str = name) -> None:
            collectives.tell(label, name, error, process_set)

        pairs = compressed((gradients[place] for place in group), options.compression, tell)
        sent = [tensor for tensor, _ in pairs]
        received = reduce(ALLREDUCE, label, sent, name, -group[0], options.how, True, step)
        for place, tensor, (_, ctx) in zip(group, received, pairs, strict=True):
            result = options.compression.decompress(tensor, ctx)
            if result is not gradients[place]:
                result.copyto(gradients[place])
