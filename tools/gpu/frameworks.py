# SPDX-License-Identifier: Apache-2.0
"""Steps of ranks.py with other frameworks than PyTorch. Each returns what is wrong, or why it is not run.

On the stand-in, which neither of them can use, the same functions run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.core.objects import allgather_object

__all__ = ["STEPS"]


def told(hvd: Any, version: str, wrong: list[Any]) -> dict[str, Any]:
    counted = hvd.statistics()
    result = {"ranks": hvd.size(), "version": version, "wrong": allgather_object(wrong)}
    return {**result, **{name: counted[name] for name in ("batches_by_nccl", "batches_staged")}}


def compiled_by_jax(on_cpu: bool) -> Any:
    """Operations one behind the other, gradients of a model, and a function whose input is late."""
    try:
        import jax
        import jax.numpy as jnp

        devices = jax.local_devices(backend="cpu" if on_cpu else "cuda")
    except (ImportError, RuntimeError) as error:
        return {"not run": f"JAX: {str(error).splitlines()[0]}"}
    import horovod.jax as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    @jax.jit
    def step(x: Any) -> Any:
        late = jax.lax.fori_loop(0, 300, lambda _, value: value @ jnp.eye(512), jnp.full((512, 512), rank + 1.0))
        total = hvd.allreduce({"x": x, "late": late[0, :3]}, op=hvd.Sum, name="tree")
        rows = hvd.allgather(total["x"][:2] * 0 + rank, name="rows")
        (gradient,) = jax.grad(lambda v: (hvd.allreduce(v, op=hvd.Sum, name="g") ** 2).sum())(x)[:1]
        return total, rows, gradient, hvd.broadcast(x + rank, root_rank=1, name="b")

    with jax.default_device(devices[hvd.local_rank() % len(devices)]):
        wrong, all_of_them = [], size * (size + 1) / 2
        for number in range(5):
            total, rows, gradient, copied = step(jnp.full(1000, float(number)))
            found = [total["x"][0], total["late"][0], rows[-1], gradient, copied[0]]
            wanted = [number * size, all_of_them, size - 1, 2.0 * number * size * size, number + 1]
            wrong += [(number, list(map(float, found)), wanted)] if list(map(float, found)) != wanted else []
    return told(hvd, jax.__version__, wrong)


def by_tensorflow(on_cpu: bool) -> Any:
    """Eagerly, in a function, and in one that XLA compiles: a late input, a gradient, and operations that nothing
    orders. Then rows of each rank, and training by Keras."""
    try:
        import tensorflow as tf
    except ImportError as error:
        return {"not run": f"TensorFlow: {error}"}
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus and not on_cpu:
        return {"not run": "TensorFlow has no GPU"}
    import horovod.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if gpus:
        mine = gpus[hvd.local_rank() % len(gpus)]
        tf.config.experimental.set_memory_growth(mine, True)
        tf.config.set_visible_devices(mine, "GPU")

    def step(x: Any) -> Any:
        late = tf.ones([512, 512]) * (rank + 1.0)
        for _ in range(20):
            late = late @ tf.eye(512)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 2)
        return hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(late[0, :3], op=hvd.Sum), tape.gradient(loss, x)

    wrong: list[Any] = []
    for way, run in (("eager", step), ("function", tf.function(step)), ("XLA", tf.function(step, jit_compile=True))):
        for number in range(5):
            found = [float(each[0]) for each in run(tf.fill([1000], float(number)))]
            wanted = [number * size, size * (size + 1) / 2, 2.0 * number * size * size]
            wrong += [(way, number, found, wanted)] if found != wanted else []
    rows = hvd.allgather(tf.fill([rank + 1, 2], float(rank)))[:, 0].numpy().tolist()
    wanted = [float(r) for r in range(size) for _ in range(r + 1)]
    wrong += [("rows", rows, wanted)] if rows != wanted else []
    import horovod.tensorflow.keras as hvd_keras

    return told(hvd, tf.__version__, wrong + trained_by_keras(hvd_keras))


def by_keras(on_cpu: bool) -> Any:
    """With the backend that KERAS_BACKEND names."""
    try:
        import keras
    except ImportError as error:
        return {"not run": f"Keras: {error}"}
    import horovod.keras as hvd

    hvd.init()
    name = keras.backend.backend()
    if name == "torch" and not on_cpu:
        import torch

        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return told(hvd, f"{keras.__version__} on {name}", trained_by_keras(hvd))


def trained_by_keras(hvd: Any) -> list[Any]:
    """Train, and list the faults: a loss that does not fall, or weights that differ. Keras compiles for GPUs."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((16, 16, 3)), keras.layers.Conv2D(8, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), loss="mse")
    random = np.random.default_rng(hvd.rank())
    images = random.normal(size=(64, 16, 16, 3)).astype("float32")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fitted = model.fit(images, images[:, :1, 0, 0], batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    losses = fitted.history["loss"]
    sums = allgather_object([float(np.abs(weight).sum()) for weight in model.get_weights()])
    wrong = [("loss", losses)] if not losses[-1] < losses[0] else []
    return [*wrong, ("weights", sums)] if any(each != sums[0] for each in sums) else wrong


STEPS: dict[str, Callable[[bool], Any]] = {"jax": compiled_by_jax, "tensorflow": by_tensorflow, "keras": by_keras}
