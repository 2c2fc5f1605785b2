# SPDX-License-Identifier: Apache-2.0
"""GPUs on a machine that has none: PyTorch's tensors in the memory of the stand-in (tests/native/standin).

    env = environment()                  # for worlds whose ranks open the stand-in in place of CUDA and NCCL
    with_gpus()                          # in a rank, once: from now on the product takes GpuTensors for CUDA tensors
    x = to_gpu(torch.ones(3))            # a tensor on the GPU of this rank; what torch does with it is again one

What torch does with such a tensor is enqueued on the current stream: it counts as work that reads and writes this
memory, so the stand-in's check of the order sees it. Then the host waits until its turn has come, and does it. So a
stream that waits for the core makes the host wait at the next use of a tensor, and not before.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from support.gpu.standin_library import DEVICES as DEVICES
from support.gpu.standin_library import environment as environment
from support.gpu.standin_library import library as library
from support.gpu.standin_library import races as races

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
pytree = torch.utils._pytree


class Gpu:
    """A GPU of the stand-in as PyTorch would have it: the port that horovod.torch.gpus.Cuda is the real one of."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.default_stream: int = library().standin_stream(ordinal)
        self._local = threading.local()

    def current_stream(self) -> int:
        return getattr(self._local, "stream", None) or self.default_stream

    def use_on_current_stream(self, tensor: GpuTensor) -> None:
        tensor._memory_of.block.users.add(self.current_stream())

    @contextlib.contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        """As torch.cuda.stream."""
        before, self._local.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def new_stream(self) -> int:
        made: int = library().standin_stream(self.ordinal)
        return made


class Block:
    """Device memory, which goes in the order of the stream on which it came, as with PyTorch's allocator."""

    def __init__(self, gpu: Gpu, count_bytes: int) -> None:
        self.gpu = gpu
        self.stream = gpu.current_stream()
        self.users: set[int] = set()  # other streams, of record_stream
        self.address: int = library().standin_allocate(gpu.ordinal, max(count_bytes, 1))

    def __del__(self) -> None:
        for stream in self.users:
            library().standin_order(stream, self.stream)
        library().standin_free_on(self.stream, self.address)


class Memory:
    """A plain tensor over a block, or over a part of it."""

    def __init__(self, block: Block, plain: Any) -> None:
        self.block, self.plain = block, plain

    def touch(self, stream: int, writes: bool) -> None:
        plain = self.plain
        if plain.numel() == 0:
            return
        span = 1 + sum((length - 1) * stride for length, stride in zip(plain.shape, plain.stride(), strict=True))
        library().standin_touch(stream, plain.data_ptr(), span * plain.element_size(), int(writes))


class SparseMemory:
    """A plain COO tensor over the memory of its indices and its values."""

    def __init__(self, indices: Memory, values: Memory, shape: Any, is_coalesced: bool) -> None:
        self.parts = indices, values
        self.block = values.block
        with torch.sparse.check_sparse_tensor_invariants(False):
            self.plain = _plain_sparse(indices.plain, values.plain, shape, is_coalesced=is_coalesced)

    def touch(self, stream: int, writes: bool) -> None:
        for part in self.parts:
            part.touch(stream, writes)


class GpuTensor(torch.Tensor):
    """To torch's core a tensor on the CPU; to whoever asks it, as horovod.torch does, a CUDA tensor."""

    _memory_of: Memory | SparseMemory

    @staticmethod
    def __new__(cls: type[GpuTensor], memory: Memory | SparseMemory) -> GpuTensor:
        plain = memory.plain
        how: dict[str, Any] = {"dtype": plain.dtype, "layout": plain.layout}
        if plain.layout is torch.strided:
            how.update(strides=plain.stride(), storage_offset=plain.storage_offset())
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(cls, plain.shape, **how)
        made._memory_of = memory
        return made

    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self) -> int:
        return self._memory_of.plain.data_ptr()

    def get_device(self) -> int:
        return self._memory_of.block.gpu.ordinal

    def cpu(self) -> Any:
        _run_on_stream([self], [])
        return self._memory_of.plain.detach().clone()

    def __repr__(self) -> str:
        return repr(self.cpu())

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "horovod":  # torch.compile's operators, whose kernel is for tensors of all devices
            return torch._library.custom_ops.OPDEFS[function._schema.name]._init_fn(*args)
        given = [value for value in pytree.tree_flatten((args, kwargs or {}))[0] if isinstance(value, torch.Tensor)]
        on_gpu = [value for value in given if isinstance(value, GpuTensor)]
        original = {id(_plain(value)): value for value in given}
        if not _only_looks(function):
            _run_on_stream(on_gpu, [on for on in on_gpu if _is_written(function, args, kwargs or {}, on)])
        if function._schema.name == "aten::_local_scalar_dense":
            reads_back.append("".join(traceback.format_stack(limit=8)))
        result = function(*pytree.tree_map(_plain, args), **pytree.tree_map(_plain, kwargs or {}))
        return pytree.tree_map(lambda value: _wrapped(value, original, on_gpu), result)


reads_back: list[str] = []  # the stacks of those who made the host wait for a number


def _plain(value: Any) -> Any:
    return value._memory_of.plain if isinstance(value, GpuTensor) else value


def _only_looks(function: Any) -> bool:
    """Whether it reads nothing: it makes another view of the same memory, or new memory of the same kind."""
    name = function._schema.name.removeprefix("aten::")
    if name.startswith("new_") or name.endswith("_like"):
        return True
    returns = [each.alias_info for each in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returns)


def _is_written(function: Any, args: Any, kwargs: Any, tensor: GpuTensor) -> bool:
    names = [argument.name for argument in function._schema.arguments if argument.alias_info is not None]
    values = {**{a.name: v for a, v in zip(function._schema.arguments, args, strict=False)}, **kwargs}
    return any(tensor is value for name in names for value in pytree.tree_flatten(values.get(name))[0])


def _run_on_stream(read: list[GpuTensor], written: list[GpuTensor]) -> None:
    """What follows is work of the current stream."""
    streams = {}
    for tensor in read:
        stream = streams[tensor._memory_of.block.gpu] = tensor._memory_of.block.gpu.current_stream()
        tensor._memory_of.touch(stream, any(tensor is each for each in written))
    for stream in streams.values():
        library().standin_drain(stream)


def _wrapped(value: Any, original: dict[int, Any], on_gpu: list[GpuTensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in original:
        return original[id(value)]
    if value.layout is torch.strided:
        storage = value.untyped_storage().data_ptr()
        for memory in _dense_memory_of(on_gpu):
            if memory.plain.untyped_storage().data_ptr() == storage and storage:
                return GpuTensor(Memory(memory.block, value))
    return to_gpu(value, on_gpu[0]._memory_of.block.gpu)


def _dense_memory_of(tensors: list[GpuTensor]) -> Iterator[Memory]:
    for tensor in tensors:
        memory = tensor._memory_of
        yield from memory.parts if isinstance(memory, SparseMemory) else (memory,)


_gpus: dict[int, Gpu] = {}


def gpu(ordinal: int | None = None) -> Gpu:
    """A GPU, by default the one of this rank."""
    if ordinal is None:
        ordinal = _current_device()
    return _gpus.get(ordinal) or _gpus.setdefault(ordinal, Gpu(ordinal))


def _current_device() -> int:
    """As a script chooses it: that of the local rank."""
    import horovod.core

    return int(horovod.core.local_rank()) % DEVICES


def to_gpu(plain: Any, on: Gpu | None = None) -> Any:
    """A copy of a tensor in the memory of a GPU, with the same strides."""
    plain = plain.detach()
    on = on or gpu()
    if plain.layout is torch.sparse_coo:
        parts = [to_gpu(part.contiguous(), on)._memory_of for part in (plain._indices(), plain._values())]
        return GpuTensor(SparseMemory(*parts, plain.shape, plain.is_coalesced()))
    room = 1 + sum((length - 1) * stride for length, stride in zip(plain.shape, plain.stride(), strict=True))
    room = room if plain.numel() else 0
    block = Block(on, room * plain.element_size())
    if room:
        buffer = (ctypes.c_char * (room * plain.element_size())).from_address(block.address)
        memory = torch.frombuffer(buffer, dtype=plain.dtype).as_strided(plain.shape, plain.stride())
        memory.copy_(plain)
    else:
        memory = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype)
    made = Memory(block, memory)
    made.touch(on.current_stream(), True)
    return GpuTensor(made)


def module_to_gpu(module: Any) -> Any:
    """As module.cuda(), of a module whose tensors are leaves."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(to_gpu(parameter), parameter.requires_grad))
        for name, value in list(part.named_buffers(recurse=False)):
            part._buffers[name] = to_gpu(value)
    return module


_plain_sparse = torch.sparse_coo_tensor


def _sparse_coo_tensor(indices: Any, values: Any, *size: Any, **how: Any) -> Any:
    """As torch's, whose check of the indices looks into memory past the dispatcher."""
    if not isinstance(values, GpuTensor):
        return _plain_sparse(indices, values, *size, **how)
    _run_on_stream([indices, values], [])
    return to_gpu(_plain_sparse(_plain(indices), _plain(values), *size, **how), values._memory_of.block.gpu)


def with_gpus() -> None:
    """From now on horovod.torch takes GpuTensors for CUDA tensors."""
    from horovod.torch import gpus

    vars(torch)["sparse_coo_tensor"] = _sparse_coo_tensor
    gpus.gpu_of = lambda tensor: tensor._memory_of.block.gpu if isinstance(tensor, GpuTensor) else None
