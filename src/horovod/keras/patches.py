# SPDX-License-Identifier: Apache-2.0
"""Changes to Keras' own classes for distributed training, and for old scripts.

A loss-scaled optimizer is distributed outside of the scaling, so that all ranks skip the same steps, whether
model.compile() scales or the script does. keras.Model.compile accepts `experimental_run_tf_function`, which Keras 3 has
removed. jit_compile is switched off if XLA cannot hold the reductions.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers.trainer import Trainer

from horovod.core.process_sets import speaks
from horovod.core.tracebacks import warn
from horovod.keras import backends
from horovod.keras.distributed import distributed_by, is_distributed, undistributed

__all__ = ["accept_old_arguments", "has_own_step", "switch_off_jit", "watch_compile_of_tf_keras"]


def has_own_step(model: Any) -> bool:
    """True if train_step() is the script's own. Then it may reduce by itself; Keras' own cannot."""
    step = getattr(type(model), "train_step", None)
    return getattr(step, "__module__", "").split(".")[0] not in ("keras", "tf_keras")


def switch_off_jit(model: Any, backend: str) -> None:
    """After compile(), or when the optimizer has become distributed: if XLA cannot hold the reductions."""
    reduces = is_distributed(model.optimizer) or has_own_step(model)
    if model.jit_compile and reduces and not backends.named(backend).can_compile():
        if speaks():
            warn(
                "jit_compile is switched off for this model: Horovod's reductions cannot be part of what XLA compiles "
                "here"
            )
        model.jit_compile = False


def _scale_inside(optimizer: Any) -> None:
    """Moves the distribution outside of the scaling.

    Otherwise each rank would look at its own gradients for infinities, and one that skips a step leaves the others
    waiting.
    """
    if isinstance(optimizer, LossScaleOptimizer) and is_distributed(optimizer.inner_optimizer):
        distributed_by(optimizer, undistributed(optimizer.inner_optimizer))


def accept_old_arguments() -> None:
    """Patches the class that every Keras 3 model gets compile() from, and the one that scales losses.

    Models' own compile() calls it in turn, so saving and loading are not touched.
    """
    if getattr(Trainer.compile, "_hvd_patched", False):
        return
    original = Trainer.compile
    original_init = LossScaleOptimizer.__init__

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        _scale_inside(self)

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("experimental_run_tf_function", None)
        result = original(self, *args, **kwargs)
        _scale_inside(self.optimizer)
        switch_off_jit(self, keras.backend.backend())
        return result

    compile._hvd_patched = True  # type: ignore[attr-defined]
    Trainer.compile = compile
    LossScaleOptimizer.__init__ = init


def watch_compile_of_tf_keras() -> None:
    """The same for jit_compile of tf-keras' models; with its first optimizer that becomes distributed."""
    tf_keras: Any = sys.modules.get("tf_keras")  # which an optimizer of it has imported
    if tf_keras is None or getattr(tf_keras.Model.compile, "_hvd_patched", False):
        return
    original = tf_keras.Model.compile

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        switch_off_jit(self, "tensorflow")
        return result

    compile._hvd_patched = True  # type: ignore[attr-defined]
    tf_keras.Model.compile = compile
