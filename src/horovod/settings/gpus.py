# SPDX-License-Identifier: Apache-2.0
"""The settings of tensors on GPUs: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import milliseconds, setting

__all__ = ["GpuSettings"]

GPU_WAYS = ("best", "nccl", "host", "mpi")


@dataclasses.dataclass(frozen=True)
class GpuSettings:
    """The same on all ranks, except for the libraries' files and the time limit."""

    gpu_operations: str = setting(
        "HOROVOD_GPU_OPERATIONS",
        kinds.choice(*GPU_WAYS),
        "best",
        "How GPU tensors travel. nccl: by NCCL, or an error. host: through host memory (mpi means the same). best: by "
        "NCCL if all ranks of the operation have it and can start it; else through host memory.",
    )
    gpu_allreduce: str = setting("HOROVOD_GPU_ALLREDUCE", kinds.choice(*GPU_WAYS), "", "The same, for allreduce only.")
    gpu_allgather: str = setting("HOROVOD_GPU_ALLGATHER", kinds.choice(*GPU_WAYS), "", "For allgather.")
    gpu_broadcast: str = setting("HOROVOD_GPU_BROADCAST", kinds.choice(*GPU_WAYS), "", "For broadcast.")
    gpu_alltoall: str = setting("HOROVOD_GPU_ALLTOALL", kinds.choice(*GPU_WAYS), "", "For alltoall.")
    gpu_reducescatter: str = setting("HOROVOD_GPU_REDUCESCATTER", kinds.choice(*GPU_WAYS), "", "For reducescatter.")
    tensorflow_gpu: str = setting(
        "HOROVOD_TENSORFLOW_GPU",
        kinds.choice("host", "device"),
        "host",
        "Where Horovod gets tensors that TensorFlow has on a GPU. host: TensorFlow copies them to host memory and "
        "back. device: Horovod gets them on the GPU, and HOROVOD_GPU_OPERATIONS decides how they travel, also in "
        "functions that XLA compiles. device has not run on a GPU yet.",
    )
    cuda_library: str = setting(
        "HOROVOD_CUDA_LIBRARY", kinds.text(), "", "The CUDA driver's file; default: libcuda.so.1 of the system."
    )
    hierarchical_allreduce: bool = setting(
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        kinds.switch(),
        False,
        "On GPUs: NCCL reduces inside each host only, and the hosts exchange the sums by TCP or MPI. For clusters "
        "where NCCL is slow between the hosts, or cannot connect them. Without effect on one host, or unless all hosts "
        "have the same number of ranks, two or more. Tensors in host memory always travel in two levels.",
        flag="--hierarchical-allreduce",
        yaml="params.hierarchical_allreduce",
    )
    torus_allreduce: bool = setting(
        "HOROVOD_TORUS_ALLREDUCE",
        kinds.switch(),
        False,
        "The same two steps, but NCCL also reduces between the hosts, among ranks with the same local rank. It wins "
        "over HOROVOD_HIERARCHICAL_ALLREDUCE.",
        flag="--torus-allreduce",
        yaml="params.torus_allreduce",
    )
    nccl_streams: int = setting(
        "HOROVOD_NUM_NCCL_STREAMS",
        kinds.integer(1),
        1,
        "How many streams NCCL has on a GPU; batches take turns. Each costs the memory of a communicator of NCCL.",
        flag="--num-nccl-streams",
        yaml="library_options.num_nccl_streams",
    )
    nccl_timeout_s: float = setting(
        "HOROVOD_NCCL_TIMEOUT_SECONDS",
        kinds.number(0),
        600.0,
        "How long the ranks wait for a GPU or for NCCL, in seconds. After that the job ends. 0 means for ever.",
    )
    nccl_library: str = setting(
        "HOROVOD_NCCL_LIBRARY",
        kinds.text(),
        "",
        "NCCL's file; default: the copy that the framework has loaded, then that of the package nvidia-nccl, then "
        "libnccl.so.2 of the system.",
    )

    def _native_gpu_settings(self) -> list[tuple[str, str]]:
        return [
            *((f"gpu_{kind}", self._gpu_way(way)) for kind, way in self._gpu_ways.items()),
            ("cuda_library", self.cuda_library),
            ("nccl_library", self.nccl_library),
            ("nccl_streams", str(self.nccl_streams)),
            ("nccl_timeout_ms", str(milliseconds(self.nccl_timeout_s))),
            ("gpu_levels", self._gpu_levels),
        ]

    @property
    def _gpu_ways(self) -> dict[str, str]:
        return {
            "allreduce": self.gpu_allreduce,
            "allgather": self.gpu_allgather,
            "broadcast": self.gpu_broadcast,
            "alltoall": self.gpu_alltoall,
            "reducescatter": self.gpu_reducescatter,
        }

    @property
    def _gpu_levels(self) -> str:
        return "torus" if self.torus_allreduce else "hierarchical" if self.hierarchical_allreduce else "none"

    @property
    def on_gpus(self) -> str:
        """How tensors on GPUs travel, in one text that all ranks must have."""
        words = {name: self._gpu_way(way) for name, way in self._gpu_ways.items()}
        words |= {"levels": self._gpu_levels, "streams": str(self.nccl_streams), "tensorflow": self.tensorflow_gpu}
        return " ".join(f"{name}={word}" for name, word in words.items())

    def _gpu_way(self, of_operation: str) -> str:
        way = of_operation or self.gpu_operations
        return "host" if way == "mpi" else way
