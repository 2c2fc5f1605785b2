# SPDX-License-Identifier: Apache-2.0
"""The packages that the contract runs against, as the same few functions over NumPy arrays. Imported in the ranks."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod.core.native import DTYPE_NAMES

if TYPE_CHECKING:
    from support.world import World, WorldPool

Array = np.ndarray[Any, Any]
NAMES = ("core", "torch")  # those that have every form of an operation
JAX = ("jax", "jax_jit")  # at once, and in a function that is compiled for every call
TENSORFLOW = ("tensorflow", "tensorflow_function", "tensorflow_graph")  # eagerly, in tf.function, in a graph of v1
FORMS = ("sync", "async", "in_place", "async_in_place")
LAYOUTS = ("dense", "transposed", "strided")
# Of the ranks that import TensorFlow. All tests give the same, so that they share a world.
TENSORFLOW_ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_NUM_INTEROP_THREADS": "4",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "tensorflow",
    "TF_USE_LEGACY_KERAS": "0",
}


def missing(name: str) -> str | None:
    """Why a framework's part cannot run here; None if it can."""
    module = name.partition("_")[0]
    return None if name == "core" or importlib.util.find_spec(module) else f"not run: {module} is not installed"


def bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> Any:
    return bfloat16() if name == "bfloat16" else np.dtype(name)


class Core:
    """NumPy arrays as they are."""

    forms, layouts, mismatch = FORMS, LAYOUTS, "MismatchError"
    wrong_here: tuple[type[Exception], ...] = ()  # of a call that the engine refuses, beside ValueError
    has_fixed_shapes = False  # what other ranks give must not decide on the shape of a result

    def text(self, error: BaseException) -> str:
        """An error's text, as far as it is Horovod's."""
        return str(error)

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

    def unsupported(self) -> Any:
        import ml_dtypes

        return np.zeros(3, ml_dtypes.float8_e5m2)


class Torch(Core):
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

    def unsupported(self) -> Any:
        return self._torch.zeros(3, dtype=self._torch.float8_e5m2)


class TensorFlow(Core):
    """TensorFlow's tensors. An operation has one form, which is run in one of three modes: eagerly, in a function that
    is traced for every call and knows no dimension, or in a graph of TensorFlow 1 made for every call."""

    forms, layouts, mismatch = FORMS[:1], LAYOUTS[:1], "FailedPreconditionError"

    def __init__(self, mode: str = "eager") -> None:
        import tensorflow as tf

        import horovod.tensorflow

        self._tf = tf
        self.wrong_here = (tf.errors.InvalidArgumentError,)
        self.hvd: Any = TensorFlowModule(horovod.tensorflow, mode)

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        assert layout == "dense"
        return self._tf.constant(array)

    def array(self, tensor: Any) -> Array:
        assert self._tf.is_tensor(tensor)
        array: Array = np.asarray(tensor.numpy())
        return array

    def unsupported(self) -> Any:
        return self._tf.cast(self._tf.zeros(3), self._tf.dtypes.experimental.float8_e5m2)

    def text(self, error: BaseException) -> str:
        """Without the names of nodes before and after it, and the places where they were made."""
        found = re.search(r"(?:the ranks|rank \d+) .*?(?=\s+\[\[\{\{node|\s+\[Op:|$)", str(error), re.DOTALL)
        return found[0] if found else str(error)


class TensorFlowModule:
    """horovod.tensorflow, its operations run in a mode."""

    operations = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join")

    def __init__(self, hvd: Any, mode: str) -> None:
        import tensorflow as tf

        import horovod.core.exceptions

        self._hvd = hvd
        self._tf = tf
        self._run = {"eager": self._eagerly, "function": self._in_a_function, "graph": self._in_a_graph}[mode]
        # Sets and objects travel without TensorFlow.
        self.HorovodInternalError = (tf.errors.FailedPreconditionError, horovod.core.exceptions.HorovodInternalError)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._hvd, name)
        if name.removeprefix("grouped_") not in self.operations:
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = self._run(value, (arguments, options))
            return int(result) if name == "join" else result

        return call

    def _eagerly(self, operation: Any, given: Any) -> Any:
        return operation(*given[0], **given[1])

    def _opened(self, operation: Any, given: Any) -> tuple[list[Any], Any]:
        """The tensors in `given`, and the operation as a function of them alone."""
        nest = self._tf.nest
        flat = nest.flatten(given)
        places = [index for index, value in enumerate(flat) if self._tf.is_tensor(value)]

        def apply(*tensors: Any) -> Any:
            values = list(flat)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            arguments, options = nest.pack_sequence_as(given, values)
            return operation(*arguments, **options)

        return [flat[place] for place in places], apply

    def _in_a_function(self, operation: Any, given: Any) -> Any:
        tensors, apply = self._opened(operation, given)

        def body(*traced: Any) -> Any:
            result = apply(*traced)
            return None if isinstance(result, self._tf.Operation) else result

        signature = [self._tf.TensorSpec([None] * len(tensor.shape), tensor.dtype) for tensor in tensors]
        return self._tf.function(body, input_signature=signature, autograph=False)(*tensors)

    def _in_a_graph(self, operation: Any, given: Any) -> Any:
        tf, (tensors, apply) = self._tf, self._opened(operation, given)
        with tf.Graph().as_default() as graph:
            fed = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors]
            results = apply(*fed)
            with tf.compat.v1.Session(graph=graph) as session:
                values = session.run(results, {node: t.numpy() for node, t in zip(fed, tensors, strict=True)})
        return None if values is None else tf.nest.map_structure(tf.constant, values)


class Jax(Core):
    """JAX's arrays. Operations run at once, or in a function that is compiled for every call."""

    forms, layouts, mismatch = ("sync", "async"), LAYOUTS[:1], "MismatchError"

    def __init__(self, mode: str = "eager") -> None:
        import jax

        import horovod.jax

        self._jax = jax
        self.hvd: Any = horovod.jax
        if mode == "jit":
            self.forms, self.has_fixed_shapes = FORMS[:1], True
            self.mismatch = jax.errors.JaxRuntimeError.__name__  # another one before JAX 0.5
            self.hvd = CompiledJax(horovod.jax)

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        assert layout == "dense"
        return self._jax.numpy.asarray(array)

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, self._jax.Array)
        return np.asarray(tensor)

    def unsupported(self) -> Any:
        return self._jax.numpy.zeros(3, self._jax.numpy.float8_e5m2)

    def text(self, error: BaseException) -> str:
        """Without the status code in front."""
        return re.sub(r"^[A-Z_]+: ", "", str(error))


class CompiledJax:
    """horovod.jax, its operations run in functions that are compiled."""

    def __init__(self, hvd: Any) -> None:
        import jax

        self._hvd, self._jax = hvd, jax
        self.HorovodInternalError = (jax.errors.JaxRuntimeError, hvd.HorovodInternalError)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._hvd, name)
        operation = name.removeprefix("grouped_")
        if operation not in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            leaves, structure = self._jax.tree_util.tree_flatten((arguments, options))
            places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, self._jax.Array)]

            def body(*traced: Any) -> Any:
                for place, tensor in zip(places, traced, strict=True):
                    leaves[place] = tensor
                given, keywords = structure.unflatten(leaves)
                return value(*given, **keywords)

            tensors = [leaves[place] for place in places]
            return self._jax.block_until_ready(self._jax.jit(body)(*tensors))

        return call


class Mxnet(Core):
    """MXNet's arrays. Whoever calls an operation reads its results at once, as that raises what is wrong."""

    forms, layouts, mismatch = ("sync", "in_place"), LAYOUTS[:1], "MismatchError"

    def __init__(self) -> None:
        import mxnet as mx

        import horovod.mxnet

        mx.util.set_np_shape(True)  # arrays may be empty, and have no dimension
        self._mx = mx
        self.hvd: Any = MxnetModule(horovod.mxnet)

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        from horovod.mxnet import tensors

        assert layout == "dense"
        array = np.array(array, order="C")
        tensor = tensors.empty(self._mx.nd.NDArray, array.shape, DTYPE_NAMES.index(array.dtype.name))
        ctypes.memmove(tensors.MxnetAdapter().address(tensor), array.ctypes.data, array.nbytes)
        return tensor

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, self._mx.nd.NDArray)
        array: Array = tensor.asnumpy()
        return array.view(bfloat16()) if array.dtype.names == ("bfloat16",) else array

    def unsupported(self) -> Any:
        return np.zeros(3, np.uint32)


class MxnetModule:
    """horovod.mxnet, the results of its operations read."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._hvd, name)
        if name.removeprefix("grouped_").rstrip("_") not in ("allreduce", "broadcast", "reducescatter"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            for array in result if isinstance(result, list) else [result]:
                array.wait_to_read()
            return result

        return call


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
        self.ranks = process_set.ranks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._hvd, name)
        if not callable(value) or name in ("poll", "synchronize"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            if name.startswith("broadcast"):  # (tensor, root): a root is a rank of the world
                arguments = (arguments[0], self.process_set.ranks[arguments[1]], *arguments[2:])
            return value(*arguments, **options, process_set=self.process_set)

        return call


def init_of(framework: str) -> Callable[[], Any]:
    """What imports it, which takes long, and calls its init: for the ranks of a world, as they start."""
    return lambda: importlib.import_module(f"horovod.{framework}").init()


def tensorflow_world(worlds: WorldPool, size: int = 2, **env: str) -> World:
    """A world of the pool whose ranks have imported TensorFlow and called init."""
    return worlds(size, {**TENSORFLOW_ENV, **env}, init_of("tensorflow"))


def jax_world(worlds: WorldPool, size: int = 2, **env: str) -> World:
    """As tensorflow_world, with JAX, which has all dtypes then."""
    all_dtypes = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}
    return worlds(size, {**TENSORFLOW_ENV, **all_dtypes, **env}, init_of("jax"))


def load(name: str) -> Any:
    """The framework of that name, with Horovod initialized in this rank."""
    module, _, mode = name.partition("_")
    with_modes: dict[str, Any] = {"tensorflow": TensorFlow, "jax": Jax}
    plain: dict[str, Any] = {"core": Core, "torch": Torch, "mxnet": Mxnet}
    if name == "torch_gpu":
        from support.gpu.torch_on_gpu import TorchOnGpu

        plain[name] = TorchOnGpu
    if name.startswith("tensorflow_gpu"):
        from support.gpu.tensorflow_on_gpu import TensorFlowOnGpu

        with_modes[module], mode = TensorFlowOnGpu, mode.removeprefix("gpu").removeprefix("_")
    framework: Any = with_modes[module](mode or "eager") if module in with_modes else plain[name]()
    framework.hvd.init()
    return framework


def loaded(run: Callable[..., Any]) -> Callable[..., Any]:
    """For the ranks: `run` of a framework and its package, as a function of the framework's name."""

    @functools.wraps(run)  # of its module, too, which decides how it is pickled
    def run_with(name: str, *arguments: Any) -> Any:
        framework = load(name)
        return run(framework, framework.hvd, *arguments)

    return run_with
