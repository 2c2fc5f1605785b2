# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with JAX, flax and optax, data-parallel.

    horovodrun -np 2 python examples/10_jax_mnist/train.py

What makes the script distributed is marked with "Horovod:". It also runs alone: python train.py. The whole step, the
reduction of the gradients included, is one compiled function.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

try:
    import flax.linen as nn
    import flax.serialization
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
except ModuleNotFoundError as error:
    sys.exit(f"{error}\nhint: pip install jax optax flax")

import horovod.jax as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402


class LeNet5(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for channels, padding in ((6, "SAME"), (16, "VALID")):
            x = nn.relu(nn.Conv(channels, (5, 5), padding=padding)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LeNet-5 on MNIST with JAX, data-parallel with Horovod")
    parser.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="number of training images; by default all")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank; scaled by their number")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=Path, help="file that rank 0 writes after every epoch")
    return parser.parse_args()


def pixels(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((images.astype(np.float32) / 255 - 0.1307) / 0.3081)[..., None]


def own_batches(count: int, epoch: int, arguments: argparse.Namespace) -> np.ndarray[Any, Any]:
    """Horovod: this rank's share of a shuffle that is the same on all ranks, as many batches on each."""
    order = np.random.default_rng((arguments.seed, epoch)).permutation(count)
    steps = count // (arguments.batch_size * hvd.size())
    shares = order[: steps * arguments.batch_size * hvd.size()].reshape(steps, hvd.size(), arguments.batch_size)
    return shares[:, hvd.rank()]


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # Horovod: find the other ranks
    digits = mnist.load(arguments.data_dir)
    images, labels = pixels(digits.train_images[: arguments.images]), digits.train_labels[: arguments.images]
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, {len(images)} training images, {digits.source}", flush=True)

    model = LeNet5()
    params = model.init(jax.random.key(arguments.seed + hvd.rank()), images[:1])
    # Horovod: all ranks start with what rank 0 has
    params = hvd.broadcast_parameters(params, root_rank=0)
    # Horovod: a larger batch over all ranks takes a larger learning rate, and gradients are averaged over the ranks
    optimizer = optax.sgd(arguments.lr * hvd.size(), momentum=arguments.momentum)
    optimizer = hvd.DistributedGradientTransformation(optimizer)
    state = optimizer.init(params)

    def loss_of(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def one_step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    step = jax.jit(one_step, donate_argnums=(0, 1))
    correct_answers = jax.jit(lambda params, images, labels: (model.apply(params, images).argmax(1) == labels).sum())

    for epoch in range(arguments.epochs):
        started, losses = time.monotonic(), []
        for chosen in own_batches(len(images), epoch, arguments):
            params, state, loss = step(params, state, images[chosen], labels[chosen])
            losses.append(loss)
        average = hvd.allreduce(jnp.stack(losses).mean(), name="train_loss")
        # Horovod: every rank tests its share of the images
        mine = slice(hvd.rank(), None, hvd.size())
        correct = correct_answers(params, pixels(digits.test_images[mine]), digits.test_labels[mine])
        accuracy = float(hvd.allreduce(correct, name="correct", op=hvd.Sum)) / len(digits.test_labels)
        if hvd.rank() == 0:  # Horovod: one rank talks, and writes
            seconds = time.monotonic() - started
            print(f"epoch {epoch + 1}: {len(losses)} steps in {seconds:.0f} s", file=sys.stderr, flush=True)
            print(f"epoch {epoch + 1}: training loss {average:.4f}, test accuracy {accuracy:.4f}", flush=True)
            if arguments.checkpoint:
                arguments.checkpoint.write_bytes(flax.serialization.to_bytes(params))


if __name__ == "__main__":
    main()
