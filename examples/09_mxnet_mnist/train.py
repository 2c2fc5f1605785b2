# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with MXNet's Gluon, data-parallel.

    horovodrun -np 2 python examples/09_mxnet_mnist/train.py

What makes the script distributed is marked with "Horovod:". It also runs alone: python train.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import horovod.mxnet as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402


def lenet5() -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="lenet5_")
    with net.name_scope():
        net.add(
            nn.Conv2D(6, 5, padding=2, activation="relu"),
            nn.MaxPool2D(),
            nn.Conv2D(16, 5, activation="relu"),
            nn.MaxPool2D(),
            nn.Dense(120, activation="relu"),
            nn.Dense(84, activation="relu"),
            nn.Dense(10),
        )
    return net


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LeNet-5 on MNIST with MXNet, data-parallel with Horovod")
    parser.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="number of training images; by default all")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank; scaled by their number")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=Path, help="file that rank 0 writes after every epoch")
    return parser.parse_args()


def arrays(images: Any, labels: Any) -> tuple[Any, Any]:
    pixels = (images.astype(np.float32)[:, None] / 255 - 0.1307) / 0.3081
    return nd.array(pixels), nd.array(labels.astype(np.float32))


def train(net: Any, trainer: Any, images: Any, labels: Any, shuffled: Any, arguments: Any, epoch: int) -> None:
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    # Horovod: every rank trains on its own share, all of the same length
    share = shuffled[: len(shuffled) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    started = time.monotonic()
    total_loss = nd.zeros((1,))
    for first in range(0, len(share), arguments.batch_size):
        rows = nd.array(share[first : first + arguments.batch_size], dtype="int32")
        with autograd.record():
            loss = loss_of(net(images.take(rows)), labels.take(rows))
        loss.backward()
        trainer.step(len(rows))
        total_loss += loss.sum()
    # Horovod: the average of a number over all ranks
    average = hvd.allreduce(total_loss / len(share), name="train_loss").asscalar()
    if hvd.rank() == 0:  # Horovod: one rank talks for all
        rate = len(share) * hvd.size() / (time.monotonic() - started)
        print(f"epoch {epoch}: training loss {average:.4f}, {rate:.0f} images/s", flush=True)


def test(net: Any, images: Any, labels: Any) -> tuple[float, int]:
    """Accuracy over the test images of all ranks, and their number."""
    right = nd.zeros((2,))  # correct answers, images
    mine = range(hvd.rank(), len(labels), hvd.size())
    for first in range(0, len(mine), 1000):
        rows = nd.array(mine[first : first + 1000], dtype="int32")
        right[0] += (net(images.take(rows)).argmax(axis=1) == labels.take(rows)).sum()
        right[1] += len(rows)
    # Horovod: shares may differ by one image, so sums are added instead of averages averaged
    correct, count = hvd.allreduce(right, name="test", op=hvd.Sum).asnumpy()
    return float(correct / count), int(count)


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # Horovod: find the other ranks
    mx.random.seed(arguments.seed)
    shuffle = np.random.RandomState(arguments.seed)  # the same on all ranks

    digits = mnist.load(arguments.data_dir)
    images, labels = arrays(digits.train_images[: arguments.images], digits.train_labels[: arguments.images])
    test_images, test_labels = arrays(digits.test_images, digits.test_labels)
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, {len(labels)} training images, {digits.source}", flush=True)

    net = lenet5()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    # Horovod: all ranks start with what rank 0 has, as soon as the first batch has told the shapes
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    # Horovod: gradients are averaged over the ranks; a larger batch over all ranks takes a larger learning rate
    options = {"learning_rate": arguments.lr * hvd.size(), "momentum": arguments.momentum}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options)

    for epoch in range(1, arguments.epochs + 1):
        train(net, trainer, images, labels, shuffle.permutation(len(labels)), arguments, epoch)
        accuracy, count = test(net, test_images, test_labels)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test accuracy {accuracy:.4f} ({count} images)", flush=True)
            if arguments.checkpoint:  # Horovod: only one rank writes
                net.save_parameters(str(arguments.checkpoint))


if __name__ == "__main__":
    main()
