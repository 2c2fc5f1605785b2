# SPDX-License-Identifier: Apache-2.0
"""RNN and LSTM over T x N inputs. The hidden state goes on from batch to batch, except where `cont` is 0."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, layer

__all__ = ["LSTM", "RNN"]


class _Recurrent(Layer):
    """Bottoms: x (T, N, ...), cont (T, N), a static input (N, ...) if wanted, the states with expose_hidden."""

    bottoms, tops = (2, None), (1, None)
    states = 1  # how many tensors go on from one time to the next

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.recurrent_param
        if param.num_output < 1:
            raise CaffeError("num_output must be at least 1")
        exposed = self.states if param.expose_hidden else 0
        self.has_static = len(bottoms) == 3 + exposed
        if len(bottoms) not in (2 + exposed, 3 + exposed) or len(self.proto.top) != 1 + exposed:
            raise CaffeError(f"expected {2 + exposed} or {3 + exposed} bottoms and {1 + exposed} top(s)")
        if bottoms[0].ndim < 2 or bottoms[1].shape != bottoms[0].shape[:2]:
            raise CaffeError(f"expected `cont` of {list(bottoms[0].shape[:2])}, got {list(bottoms[1].shape)}")
        self.inputs = bottoms[0].shape[2:].numel()
        self.static_inputs = bottoms[2].shape[1:].numel() if self.has_static else 0
        self.kept: list[Tensor] | None = None
        self.declare(param.num_output)

    def declare(self, outputs: int) -> None:
        """Adds the blobs."""
        raise NotImplementedError

    def declare_input(self, gates: int, outputs: int) -> None:
        param = self.proto.recurrent_param
        self.add_blob([gates * outputs, self.inputs], param.weight_filler)
        self.add_blob([gates * outputs], param.bias_filler)
        if self.has_static:
            self.add_blob([gates * outputs, self.static_inputs], param.weight_filler)
        self.add_blob([gates * outputs, outputs], param.weight_filler)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.recurrent_param
        steps, batch = bottoms[0].shape[:2]
        x = F.linear(bottoms[0].reshape(steps, batch, -1), self.blobs[0], self.blobs[1])
        if self.has_static:
            x = x + F.linear(bottoms[2].reshape(batch, -1), self.blobs[2])
        if param.expose_hidden:
            states = [one.reshape(batch, -1) for one in bottoms[-self.states :]]
        elif self.kept is not None and self.kept[0].shape[0] == batch:
            states = self.kept
        else:
            states = [x.new_zeros(batch, param.num_output) for _ in range(self.states)]
        outputs = []
        for time in range(steps):
            output, states = self.step(x[time], bottoms[1][time][:, None], states)
            outputs.append(output)
        tops = [torch.stack(outputs)]
        if param.expose_hidden:
            return tops + [one[None] for one in states]
        if not x.is_meta:
            self.kept = [one.detach() for one in states]
        return tops

    def step(self, x: Tensor, cont: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The output of one time, and the states after it."""
        raise NotImplementedError


@layer("LSTM")
class LSTM(_Recurrent):
    """Blobs: input weights (gates in the order input, forget, output, new), bias, static weights, hidden weights."""

    states = 2

    def declare(self, outputs: int) -> None:
        self.declare_input(4, outputs)

    def step(self, x: Tensor, cont: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden, cell = states
        gates = x + F.linear(hidden * cont, self.blobs[-1])
        enter, forget, leave, new = gates.chunk(4, 1)
        cell = cont * forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        return hidden, [hidden, cell]


@layer("RNN")
class RNN(_Recurrent):
    """Blobs: input weights, bias, static weights, hidden weights, output weights and their bias."""

    def declare(self, outputs: int) -> None:
        self.declare_input(1, outputs)
        self.add_blob([outputs, outputs], self.proto.recurrent_param.weight_filler)
        self.add_blob([outputs], self.proto.recurrent_param.bias_filler)

    def step(self, x: Tensor, cont: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden = torch.tanh(x + F.linear(states[0] * cont, self.blobs[-3]))
        return torch.tanh(F.linear(hidden, self.blobs[-2], self.blobs[-1])), [hidden]
