# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through PyTorch's tensors on GPUs, which the stand-in has: by NCCL, and through
host memory. The stand-in's NCCL adds in the order of the ranks, so the
bits are those of the reference, if no term is rounded: NCCL multiplies an Average's inputs by 1 / size."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract import test_errors as errors
from contract import test_join as joining
from contract import test_process_sets as process_sets
from contract import test_results as results
from support import contract, frameworks, reference
from support.extent import THOROUGH, later
from support.gpu import gpu_worlds as gpu_worlds_of
from support.gpu import standin
from support.world import World, WorldPool

import horovod.core as hvd
from horovod.core.native import DTYPE_NAMES, OP_NAMES

NAME = "torch_gpu"
OF_RESULTS = [("best", 2, dtype) for dtype in (DTYPE_NAMES if THOROUGH else ("float32",))]
OF_RESULTS += [("host", 2, "float32"), *(later(*case, "float32") for case in (("best", 3), ("best", 4), ("host", 3)))]
ROWS = [
    contract.row(
        results.test_results_over_overlapping_sets_are_those_of_the_reference,
        NAME,
        3,
        "tcp",
        "float32",
        marks=pytest.mark.thorough,
    ),
    contract.row(results.test_many_operations_in_flight_may_start_in_another_order_on_every_rank, NAME),
    contract.row(errors.test_a_name_in_flight_is_refused_at_once_and_does_not_hurt_the_first, NAME),
    contract.row(errors.test_an_operation_in_place_needs_memory_to_write_to, NAME),
    contract.row(joining.test_every_allreduce_gets_zeros_from_who_has_joined, NAME, 3, ""),
    contract.row(joining.test_what_needs_every_rank_fails_on_those_who_call_it, NAME, 3, ""),
    contract.row(process_sets.test_overlapping_sets_in_flight_at_once, NAME, 3, ""),
    contract.row(process_sets.test_errors_in_a_set_reach_its_members, NAME, ""),
    *contract.disagreements(NAME),
    *contract.mistakes(NAME),
    *contract.adasums(NAME),
]


def world_of(worlds: WorldPool, way: str, size: int) -> World:
    return gpu_worlds_of.world_of(worlds, standin.environment, way, size)


@pytest.fixture
def gpu_worlds(worlds: WorldPool) -> Any:
    return gpu_worlds_of.any_transport(worlds, standin.environment)


@pytest.mark.parametrize(("test", "arguments"), ROWS)
def test_contract(gpu_worlds: Any, test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(gpu_worlds, *arguments)


@pytest.mark.parametrize(("way", "size", "dtype"), OF_RESULTS)
def test_results(worlds: WorldPool, way: str, size: int, dtype: str) -> None:
    gpu_worlds_of.check_results(world_of(worlds, way, size), way, size, NAME, dtype)


@pytest.mark.slow("jobs on the stand-in for GPUs")
@pytest.mark.parametrize("levels", ["HOROVOD_HIERARCHICAL_ALLREDUCE", later("HOROVOD_TORUS_ALLREDUCE")])
def test_results_on_two_levels(worlds: WorldPool, levels: str) -> None:
    """NCCL inside each of two hosts, and across them the hosts' own transport, or NCCL."""

    def run() -> tuple[list[str], str, int]:
        gpu = frameworks.load(NAME)
        wrong, _ = results.wrong_rows_of(gpu, "float32", reference.same_but_for_rounding)
        return wrong, standin.races(), gpu.hvd.statistics()["batches_in_levels"]

    world = worlds(4, standin.environment("best", HOROVOD_TRANSPORT="2+2", **{levels: "1"}))
    for wrong, races, in_levels in world.run(run):
        assert wrong == [] and races == "" and in_levels > 20


def test_ranks_that_disagree_about_gpus_do_not_start() -> None:
    def run() -> str:
        os.environ["HOROVOD_GPU_OPERATIONS"] = "nccl" if os.environ["HOROVOD_RANK"] == "1" else "host"
        with pytest.raises(ValueError) as raised:
            hvd.init()
        return str(raised.value)

    with World(2, {}) as world:
        for text in world.run(run):
            assert "a setting for GPUs" in text and "allreduce=nccl" in text and "allreduce=host" in text, text


def test_special_floats(worlds: WorldPool) -> None:
    """Through host memory."""

    on_host: Any = gpu_worlds_of.any_transport(worlds, standin.environment, "host")
    results.test_special_floats_propagate_and_zeros_keep_their_sign(on_host, NAME)  # type: ignore[arg-type]


def test_special_floats_by_nccl(gpu_worlds: Any) -> None:
    """NCCL's Min and Max take the numbers if some ranks have NaN, as CUDA's fmin and fmax do. Zeros keep their sign."""

    def run() -> list[str]:
        gpu = frameworks.load(NAME)
        rank, size = gpu.hvd.rank(), gpu.hvd.size()
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 5e-324]
        wrong = []
        for dtype in ("float16", "float32", "float64"):
            inputs = [np.roll(np.array(special), r).astype(dtype) for r in range(size)]
            numbers = {
                "Max": [np.where(np.isnan(a), -np.inf, a).astype(dtype) for a in inputs],
                "Min": [np.where(np.isnan(a), np.inf, a).astype(dtype) for a in inputs],
            }
            for op in ("Sum", "Product", "Min", "Max"):
                number = OP_NAMES.index(op)
                expected = reference.allreduce(numbers.get(op, inputs), number)
                seen = gpu.array(gpu.hvd.allreduce(gpu.tensor(inputs[rank]), op=number))
                if not reference.same_bits(seen, expected):
                    wrong.append(f"{op} {dtype}: expected {expected}, got {seen}")
        return wrong

    assert gpu_worlds(3).run(run) == [[], [], []]


def test_host_and_gpu_in_one_group(gpu_worlds: Any) -> None:
    def run() -> str:
        import torch

        hvd = frameworks.load(NAME).hvd
        tensors = [torch.ones(2), standin.to_gpu(torch.ones(2))]
        with pytest.raises(ValueError) as raised:
            hvd.grouped_allreduce(tensors, name="both")
        return str(raised.value)

    for text in gpu_worlds(2).run(run):
        assert "must lie in one place, got host memory and GPU" in text


def test_a_host_s_tensor_and_a_gpu_s_do_not_meet(gpu_worlds: Any) -> None:
    def run() -> str:
        import torch

        hvd = frameworks.load(NAME).hvd
        tensor = torch.ones(2) if hvd.rank() == 0 else standin.to_gpu(torch.ones(2))
        with pytest.raises(hvd.HorovodInternalError) as raised:
            hvd.allreduce(tensor, name="where")

        def batches_on_gpus() -> int:
            counts = hvd.statistics()
            return int(counts["batches_by_nccl"] + counts["batches_staged"])

        # The key of the one is not that of the other.
        for _ in range(3):
            for each in (torch.ones(2), standin.to_gpu(torch.ones(2))):
                before = batches_on_gpus()
                assert hvd.allreduce(each, op=hvd.Sum, name="here").sum().item() == 2.0 * hvd.size()
                assert batches_on_gpus() - before == int(each.is_cuda)
        return str(raised.value)

    for text in gpu_worlds(2).run(run):
        assert "expected memory" in text and "a GPU's" in text
