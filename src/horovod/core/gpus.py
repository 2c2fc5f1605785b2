# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a GPU: what a framework's package tells the core of them (steps 3, 4 and 8).

A call on such tensors has two ends. It is *launched* once its work stands on a stream of the core's; it is *done* when
the GPU has done that work. Submitting says up to which moment of the framework's current stream the inputs are ready.
Waiting lasts until the launch, and then has the stream that is current at that moment wait for the end: the host does
not. An error that comes later ends the generation, so the next call raises it (Context.settle looks for it at once).

Memory. Frameworks give a tensor's memory to the next one in the order of the stream on which it was allocated. So the
tensors of a call can be dropped as soon as the stream that submitted it waits for its end; if another stream waits,
they are kept until the GPU is done (core/operations.py).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Protocol

from horovod.core import native
from horovod.core.exceptions import InvalidRequestError
from horovod.settings import Settings

__all__ = [
    "Gpu",
    "OnGpu",
    "StreamHandle",
    "cuda_version",
    "for_result",
    "gpu_of",
    "nccl_found",
    "nccl_version",
    "why_no_nccl",
]


class Gpu(Protocol):
    """One GPU as a framework uses it."""

    ordinal: int  # the CUDA driver's number of it in this process

    def current_stream(self) -> int:
        """The stream (CUstream) on which this thread's work goes now. Never to be kept: a hook may have another one."""
        ...


class OnGpu:
    """A staged tensor (core/tensors.py) in a GPU's memory: dense and row-major.

    `dtype` combines the tensor's dtype and its GPU, so that each GPU has keys of its own. `is_private`: no other code
    sees this memory. The adapter that makes it also takes it wherever it takes a staged tensor.
    """

    __slots__ = ("dtype", "gpu", "is_private", "shape")
    dtype: Any
    shape: Any
    gpu: Gpu
    is_private: bool

    def empty(self, shape: Sequence[int]) -> OnGpu:
        """New memory on this GPU, of this dtype, in the order of the current stream."""
        raise NotImplementedError

    def on_host(self) -> Any:
        """A copy in host memory, as a staged tensor; waits for the GPU."""
        raise NotImplementedError

    def for_result(self) -> OnGpu:
        """Where a result of the same shape goes, if the user's tensor shall stay as it is."""
        return self if self.is_private else self.empty(self.shape)


def gpu_of(staged: Sequence[Any]) -> Gpu | None:
    """The GPU on which the tensors of one call lie, None if they lie in host memory.

    Raises InvalidRequestError if they lie in several places.
    """
    gpus = [mine.gpu if isinstance(mine, OnGpu) else None for mine in staged]
    places = list(dict.fromkeys(None if gpu is None else gpu.ordinal for gpu in gpus))
    if len(places) > 1:
        words = " and ".join("host memory" if place is None else f"GPU {place}" for place in places)
        raise InvalidRequestError(f"the tensors of a grouped operation must lie in one place, got {words}")
    return gpus[0] if gpus else None


class StreamHandle(c_uint64):
    """The native handle of a call on a GPU's tensors. `stream`: the one that was current at its submission."""

    gpu: Gpu
    stream: int
    waiting: int | None = None  # the stream that waits for its end

    @classmethod
    def of(cls, gpu: Gpu) -> StreamHandle:
        handle = cls()
        handle.gpu, handle.stream = gpu, gpu.current_stream()
        return handle

    def waiter(self, context: Any) -> Any:
        """A function to call in place of context.wait, with the same arguments."""
        stream = self.waiting = self.gpu.current_stream()
        return functools.partial(_wait_on, context.wait_on_stream, c_void_p(stream))

    def has_ended(self, context: Any) -> bool:
        """True if the tensors of a call, for which a stream waits, need not be kept any longer."""
        if self.waiting == self.stream:
            return True
        return bool(context.library.hvd_poll(context.pointer, self, None) != native.PENDING)


def _wait_on(function: Any, stream: c_void_p, argument: Any, handle: StreamHandle, slice_ms: int, status: Any) -> int:
    code: int = function(argument, handle, stream, slice_ms, status)
    return code


# CUDA and NCCL on this machine


@functools.cache
def nccl_found() -> str:
    """The NCCL that is installed beside this Python, as PyTorch's and JAX's packages bring it; empty if there is none.

    The native core takes it if the process has loaded none.
    """
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return ""
    for folder in (package.submodule_search_locations or []) if package else []:
        if (file := Path(folder, "lib", "libnccl.so.2")).is_file():
            return str(file)
    return ""


def cuda_version() -> int:
    """The CUDA driver's version, 1000 * major + 10 * minor; 0 if none can be used. CUDA is not initialized."""
    return int(native.library().hvd_cuda_version(Settings.from_environment().cuda_library.encode(), None))


def nccl_version() -> int:
    """The version code of the NCCL that would be used, 0 if none can be; any GPU apart. Loads it."""
    return _nccl_version(native.Status())


def why_no_nccl() -> str:
    """Why NCCL cannot be used, in one line; "" if it can."""
    status = native.Status()
    return "" if _nccl_version(status) else status.message().partition("\n")[0]


def _nccl_version(status: native.Status) -> int:
    named = Settings.from_environment().nccl_library
    return int(native.library().hvd_nccl_version(named.encode(), nccl_found().encode(), byref(status)))


def for_result(staged: Any) -> Any:
    """Where the result goes of what is not the user's tensor itself: a private copy takes it."""
    return staged.for_result() if isinstance(staged, OnGpu) else staged
