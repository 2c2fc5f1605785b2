# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/driver.py device|versions|kernels: steps of tools/gpu/check that call the CUDA driver by ctypes.

`kernels` compiles the library's kernels from their text and compares each with what NumPy computes, bit for bit.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
NOT_READY = 600


class Driver:
    """The CUDA driver with the context of one GPU current on this thread."""

    def __init__(self, ordinal: int = 0) -> None:
        self.library = ctypes.CDLL(os.environ.get("HOROVOD_CUDA_LIBRARY") or "libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxPushCurrent_v2", self.context)
        lowest, highest = ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, highest)

    def call(self, name: str, *arguments: Any) -> None:
        code = self.library[name](*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed: CUDA error {code}")

    def wait(self) -> None:
        """Until the stream has done all that it was given."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, self.stream)
        while (code := self.library["cuEventQuery"](event)) == NOT_READY:
            time.sleep(0)
        if code != 0:
            raise RuntimeError(f"cuEventQuery failed: CUDA error {code}")

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), self.stream)
        return address.value

    def copy(self, to: int, source: int, size: int) -> None:
        sizes = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size)
        self.call("cuMemcpyAsync", *sizes, self.stream)

    def upload(self, array: np.ndarray[Any, Any]) -> int:
        address = self.allocate(array.nbytes)
        self.copy(address, array.ctypes.data, array.nbytes)
        self.wait()
        return address

    def download(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        result = np.empty_like(like)
        self.copy(result.ctypes.data, address, result.nbytes)
        self.wait()
        return result


class Piece(ctypes.Structure):
    _fields_ = [("source", ctypes.c_uint64), ("to", ctypes.c_uint64), ("count", ctypes.c_uint64)]


class Kernels:
    """The library's kernels on a GPU."""

    def __init__(self, driver: Driver) -> None:
        script = ROOT / "native" / "device" / "kernels.py"
        found = importlib.util.spec_from_file_location("kernels", script)
        assert found is not None and found.loader is not None
        self.script = importlib.util.module_from_spec(found)
        found.loader.exec_module(self.script)
        self.driver, self.module = driver, ctypes.c_void_p()
        self.text = ctypes.create_string_buffer(self.script.ptx().encode())
        began = time.monotonic()
        driver.call("cuModuleLoadData", ctypes.byref(self.module), self.text)
        self.compiled_s = time.monotonic() - began

    def launch(self, name: str, pieces: list[tuple[int, int, int]], factor: float = 1.0, blocks: int = 64) -> None:
        function = ctypes.c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
        table = (Piece * self.script.PIECES)(*[Piece(*piece) for piece in pieces])
        number = ctypes.c_double(factor)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(table), ctypes.addressof(number))
        grid, block = (blocks, len(pieces), 1), (256, 1, 1)
        self.driver.call("cuLaunchKernel", function, *grid, *block, 0, self.driver.stream, parameters, None)


def narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 as bfloat16, to nearest, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def expected(name: str, values: np.ndarray[Any, Any], factor: float) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        if name == "hvd_scale_bf16":
            wide = (values.astype(np.uint32) << 16).view(np.float32)
            return narrowed(wide * np.float32(factor))
        if name == "hvd_scale_f64":
            return values * factor
        return (values.astype(np.float32) * np.float32(factor)).astype(values.dtype)


def is_nan(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if name == "hvd_scale_bf16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return np.isnan(values)


def check_scale(kernels: Kernels, name: str, dtype: Any, count: int) -> dict[str, int]:
    """Random bit patterns, so numbers of every size, infinities and NaN come up."""
    values = np.random.default_rng(7).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    wrong = 0
    for factor in (0.5, 1 / 3, 3.0, -1e-8):
        source = kernels.driver.upload(values)
        kernels.launch(name, [(source, source, count)], factor)
        seen, wanted = kernels.driver.download(source, values), expected(name, values, factor)
        same = (seen.view(np.uint8) == wanted.view(np.uint8)).reshape(count, -1).all(axis=1)
        wrong += int((~(same | (is_nan(name, seen) & is_nan(name, wanted)))).sum())
    return {"elements": 4 * count, "wrong": wrong}


def check_copies(kernels: Kernels, count: int) -> dict[str, int]:
    values = np.random.default_rng(8).integers(0, 256, count, np.uint8)
    wrong = 0
    for name, size, offset in (("hvd_copy_16", 16, 0), ("hvd_copy_1", 1, 3)):
        source = kernels.driver.upload(values)
        target = kernels.driver.upload(np.zeros_like(values))
        half = (count // 2) // 16 * 16
        pieces = [(source + offset, target + offset, (half - 16) // size), (source + half, target + half, half // size)]
        kernels.launch(name, pieces)
        wanted = np.zeros_like(values)
        for start, stop in ((offset, offset + half - 16), (half, 2 * half)):
            wanted[start:stop] = values[start:stop]
        wrong += int((kernels.driver.download(target, values) != wanted).sum())
    return {"bytes": 2 * count, "wrong": wrong}


def copy_speed(kernels: Kernels, count_bytes: int) -> float:
    """GB/s read and written by one large piece."""
    driver = kernels.driver
    source, target = driver.allocate(count_bytes), driver.allocate(count_bytes)
    rounds = 20
    for _ in range(2):  # the first warms up
        driver.wait()
        began = time.monotonic()
        for _ in range(rounds):
            kernels.launch("hvd_copy_16", [(source, target, count_bytes // 16)], blocks=1024)
        driver.wait()
    return 2 * count_bytes * rounds / (time.monotonic() - began) / 1e9


def kernels_step(small: bool) -> dict[str, Any]:
    kernels = Kernels(Driver())
    count = 4099 if small else 1 << 20
    result: dict[str, Any] = {"compiled_s": round(kernels.compiled_s, 3), "copies": check_copies(kernels, count)}
    for name, dtype in (
        ("hvd_scale_f16", np.float16),
        ("hvd_scale_bf16", np.uint16),
        ("hvd_scale_f32", np.float32),
        ("hvd_scale_f64", np.float64),
    ):
        result[name] = check_scale(kernels, name, dtype, count)
    if not small and not os.environ.get("HVD_CHECK_STAND_IN"):
        result["copy_GB_per_s"] = round(copy_speed(kernels, 256 << 20), 1)
    return result


def versions_step() -> dict[str, Any]:
    from horovod.core import gpus

    result: dict[str, Any] = {"device": device(), "cuda": gpus.cuda_version(), "nccl": gpus.nccl_version()}
    result["nccl_found"] = gpus.nccl_found()
    for name in ("torch", "jax", "tensorflow"):
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            result[name] = None
    return result


def device() -> str:
    """The GPUs, in words."""
    driver = Driver()
    count, version = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    name = "the stand-in"
    if not os.environ.get("HVD_CHECK_STAND_IN"):
        text = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", text, 256, 0)
        name = text.value.decode()
    return f"{count.value} x {name}, driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def main(what: str, *options: str) -> None:
    if what == "device":
        print(device())
        return
    result = versions_step() if what == "versions" else kernels_step("--small" in options)
    if path := os.environ.get("HVD_CHECK_RESULT"):
        Path(path).write_text(json.dumps(result))
    print(json.dumps(result))
    if any(isinstance(value, dict) and value.get("wrong") for value in result.values()):
        sys.exit("a kernel's result is wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
