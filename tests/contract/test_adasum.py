# SPDX-License-Identifier: Apache-2.0
"""The contract, op=Adasum: results against NumPy in float64, equal on all ranks, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import frameworks, reference
from support.frameworks import loaded
from support.world import WorldPool

WORLDS = [(1, "auto"), (2, "shm"), (2, "tcp"), (4, "shm"), (4, "tcp"), (4, "2+2")]
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-13}
SHAPES = [(), (3,), (0,), (5, 7), (70001,), (2, 3, 4)]


@pytest.mark.parametrize("dtype_name", TOLERANCES)
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_every_form_gives_the_reference_s_result_on_all_ranks(
    worlds: WorldPool, framework: str, size: int, transport: str, dtype_name: str
) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")

    def run(framework: Any, hvd: Any, dtype_name: str, tolerance: float) -> list[bytes]:
        rank, size = hvd.rank(), hvd.size()
        dtype = frameworks.dtype_of(dtype_name)
        inputs, expected = [], []
        for seed, shape in enumerate(SHAPES):
            # What all ranks have in common, and each one's own; the last tensor is zero on rank 1.
            common = reference.values(99, shape, np.float64, seed)
            by_rank = [(common + 0.5 * reference.values(r, shape, np.float64, seed)).astype(dtype) for r in range(size)]
            if seed == len(SHAPES) - 1 and size > 1:
                by_rank[1] = np.zeros(shape, dtype)
            inputs.append(by_rank[rank])
            expected.append(reference.adasum(by_rank))

        def check(seen: list[Any], label: str) -> list[bytes]:
            arrays = [framework.array(tensor) for tensor in seen]
            for array, wanted in zip(arrays, expected, strict=True):
                assert array.dtype == dtype and array.shape == wanted.shape
                off = np.abs(array.astype(np.float64) - wanted).max(initial=0.0)
                assert off <= tolerance * np.abs(wanted).max(initial=1e-3), (label, off)
            return [array.tobytes() for array in arrays]

        def tensors() -> list[Any]:
            return [framework.tensor(array) for array in inputs]

        results = {}
        adasum = hvd.Adasum
        results["one"] = check([hvd.allreduce(t, op=adasum) for t in tensors()], "one")
        results["grouped"] = check(hvd.grouped_allreduce(tensors(), op=adasum), "grouped")
        if "in_place" in framework.forms:
            results["in place"] = check([hvd.allreduce_(t, op=adasum) for t in tensors()], "in place")
        if "async" in framework.forms:
            handles = [hvd.allreduce_async(t, name=f"adasum.{i}", op=adasum) for i, t in enumerate(tensors())]
            results["async, fused"] = check([hvd.synchronize(handle) for handle in handles], "async")
        if "strided" in framework.layouts:
            strided = [framework.tensor(a, "strided") if a.ndim else framework.tensor(a) for a in inputs]
            results["strided"] = check([hvd.allreduce(t, op=adasum) for t in strided], "strided")
        scaled = framework.array(
            hvd.allreduce(framework.tensor(inputs[1]), op=adasum, prescale_factor=2.0, postscale_factor=0.5)
        )
        assert scaled.tobytes() == results["one"][1]  # powers of two change no bit
        for label, result in results.items():
            assert result == results["one"], label
        return results["one"]

    per_rank = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(
        loaded(run), framework, dtype_name, TOLERANCES[dtype_name]
    )
    assert all(results == per_rank[0] for results in per_rank)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_set_of_a_power_of_two_has_it_and_others_say_so(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        texts = []
        ones = framework.tensor(np.ones(4, np.float32))
        pair = hvd.add_process_set([0, 2])
        for call in (hvd.allreduce, lambda t, **options: hvd.grouped_allreduce([t], **options)):
            with pytest.raises(NotImplementedError) as raised:
                call(ones, op=hvd.Adasum)
            texts.append(str(raised.value))
        if pair.included():
            other = framework.tensor(np.array([1.0, 0, 0, 0] if hvd.rank() == 0 else [0, 3.0, 0, 0], np.float32))
            result = framework.array(hvd.allreduce(other, op=hvd.Adasum, process_set=pair))
            assert result.tolist() == [1.0, 3.0, 0.0, 0.0]
        assert float(framework.array(hvd.allreduce(ones, op=hvd.Sum))[0]) == 3.0
        assert hvd.remove_process_set(pair)
        return texts

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    for texts in worlds(3, env).run(loaded(run), framework):
        assert all("Adasum needs 2, 4, 8, ... ranks, got 3" in text and "hint:" in text for text in texts), texts


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_it_meets_no_other_reduction(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> str:
        ones = framework.tensor(np.ones(4, np.float32))
        with pytest.raises(hvd.HorovodInternalError) as raised:
            hvd.allreduce(ones, op=hvd.Adasum if hvd.rank() else hvd.Sum, name="x")
        assert float(framework.array(hvd.allreduce(ones, op=hvd.Adasum, name="x"))[0]) == 1.0
        return str(raised.value)

    first, second = worlds(2, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework)
    assert first == second and "reduce operation Sum, got Adasum" in first
