# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/nccl.py: a step of tools/gpu/check. Whether this NCCL takes the configuration of communicators as the
library gives it (its first 40 bytes, of any version since 2.17), and whether two ranks of one process reduce together:
on two GPUs if there are, else on one, which NCCL can from 2.30 on."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from driver import Driver

UNSET = -(2**31)
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def opened() -> Any:
    from horovod.core import gpus

    return ctypes.CDLL(os.environ.get("HOROVOD_NCCL_LIBRARY") or gpus.nccl_found() or "libnccl.so.2")


def config_of(size: int) -> Any:
    """native/communicators/nccl/library.h's Config, cut or with unset fields behind it."""
    fields = struct.pack("QIIiiiiQ", size, 0xCAFEBEEF, 21700, UNSET, UNSET, UNSET, UNSET, 0)
    rest = struct.pack("i", UNSET) * 16
    return ctypes.create_string_buffer((fields + rest)[: max(size, 16)])


def rank(library: Any, identity: UniqueId, size: int, member: int, ordinal: int, config_bytes: int) -> str:
    """One rank's part: what has gone wrong, empty if nothing has."""
    driver, comm = Driver(ordinal), ctypes.c_void_p()
    config = config_of(config_bytes)
    code = library.ncclCommInitRankConfig(ctypes.byref(comm), size, identity, member, config)
    if code != 0:
        return f"ncclCommInitRankConfig: {code} ({error_text(library, code)})"
    values = np.arange(1000, dtype=np.float32) + member
    address = driver.upload(values)
    pointer, count, float32, add = ctypes.c_void_p(address), ctypes.c_size_t(1000), 7, 0
    code = library.ncclAllReduce(pointer, pointer, count, float32, add, comm, driver.stream)
    if code != 0:
        return f"ncclAllReduce: {code} ({error_text(library, code)})"
    seen = driver.download(address, values)
    wanted = size * np.arange(1000, dtype=np.float32) + sum(range(size))
    if not np.array_equal(seen, wanted):
        return f"the sum is wrong: {seen[:4]} and not {wanted[:4]}"
    library.ncclCommDestroy(comm)
    return ""


def error_text(library: Any, code: int) -> str:
    library.ncclGetErrorString.restype = ctypes.c_char_p
    text: bytes = library.ncclGetErrorString(code)
    return text.decode()


def together(library: Any, size: int, devices: int, config_bytes: int) -> str:
    """The first rank's complaint, of ranks that are threads."""
    identity = UniqueId()
    if code := library.ncclGetUniqueId(ctypes.byref(identity)):
        return f"ncclGetUniqueId: {code}"
    said = [""] * size

    def run(member: int) -> None:
        try:
            said[member] = rank(library, identity, size, member, member % devices, config_bytes)
        except RuntimeError as error:
            said[member] = str(error)

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    if any(thread.is_alive() for thread in threads):
        return "hangs"
    return next((text for text in said if text), "")


def main() -> None:
    library, count = opened(), ctypes.c_int()
    Driver().call("cuDeviceGetCount", ctypes.byref(count))
    result: dict[str, Any] = {"devices": count.value}
    for size in (40, 24, 48, 72):
        result[f"config of {size} bytes"] = together(library, 1, 1, size) or "taken"
    result["two ranks"] = together(library, 2, count.value, 40) or "reduced"
    Path(os.environ["HVD_CHECK_RESULT"]).write_text(json.dumps(result))
    print(json.dumps(result), flush=True)
    # A thread may hang inside NCCL.
    os._exit(0 if (result["config of 40 bytes"], result["two ranks"]) == ("taken", "reduced") else 1)


if __name__ == "__main__":
    sys.exit(main())
