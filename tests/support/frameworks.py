# SPDX-License-Identifier: Apache-2.0
"""The packages that the contract runs against, as the same few functions over NumPy arrays. Imported in the ranks."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NAMES = ("core", "torch")


def missing(name: str) -> str | None:
    """Why a framework's part cannot run here; None where it can."""
    return None if name == "core" or importlib.util.find_spec(name) else f"not run: {name} is not installed"


def bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> Any:
    return bfloat16() if name == "bfloat16" else np.dtype(name)


class Core:
    """NumPy arrays as they are."""

    def __init__(self) -> None:
        import horovod.core

        self.hvd: Any = horovod.core

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        """A tensor with the values of `array`; layout "dense", "transposed" or "strided"."""
        if layout == "transposed":
            return np.array(array.T, order="C").T
        if layout == "strided":
            wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        return np.array(array)

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, np.ndarray)
        return tensor

    def complex(self) -> Any:
        return np.zeros(3, np.complex64)


class Torch:
    """PyTorch tensors on the host."""

    def __init__(self) -> None:
        import torch

        import horovod.torch

        torch.set_num_threads(1)
        self.hvd: Any = horovod.torch
        self._torch = torch

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        array = np.array(array)
        half = array.dtype.name == "bfloat16"
        tensor = self._torch.from_numpy(array.view(np.int16) if half else array)
        tensor = tensor.view(self._torch.bfloat16) if half else tensor
        if layout == "transposed":
            return tensor.T.contiguous().T
        if layout == "strided":
            wide = self._torch.zeros((*array.shape[:-1], array.shape[-1] * 2), dtype=tensor.dtype)
            wide[..., ::2] = tensor
            return wide[..., ::2]
        return tensor

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, self._torch.Tensor) and not tensor.requires_grad
        if tensor.dtype == self._torch.bfloat16:
            array: Array = tensor.contiguous().view(self._torch.int16).numpy().view(bfloat16())
            return array
        plain: Array = tensor.numpy()
        return plain

    def complex(self) -> Any:
        return self._torch.zeros(3, dtype=self._torch.complex64)


class InSet:
    """A framework seen from inside a process set: ranks, sizes and roots are the set's own."""

    def __init__(self, framework: Any, process_set: Any) -> None:
        self._framework = framework
        self.hvd = SetModule(framework.hvd, process_set)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._framework, name)


class SetModule:
    """The package of a framework whose operations take place in a process set."""

    def __init__(self, hvd: Any, process_set: Any) -> None:
        self._hvd = hvd
        self.process_set = process_set
        self.rank = process_set.rank
        self.size = process_set.size

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._hvd, name)
        if not callable(value) or name in ("poll", "synchronize"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            if name.startswith("broadcast"):  # (tensor, root): a root is a rank of the world
                arguments = (arguments[0], self.process_set.ranks[arguments[1]], *arguments[2:])
            return value(*arguments, **options, process_set=self.process_set)

        return call


def load(name: str) -> Any:
    """The framework of that name, with Horovod initialized in this rank."""
    framework = {"core": Core, "torch": Torch}[name]()
    framework.hvd.init()
    return framework
