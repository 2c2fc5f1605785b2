# SPDX-License-Identifier: Apache-2.0
"""What only MXNet has: operations that its engine runs, arrays in layouts of its own, and failures that it keeps."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from support.world import World

from horovod.core import context

mx = pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

import horovod.mxnet as hvd
from horovod.mxnet import ops


def test_a_call_returns_before_the_other_ranks_call(two: World) -> None:
    """Each rank's next call needs what the other rank sends after its first."""

    def run() -> list[float]:
        mine = mx.nd.ones((3,)) * (hvd.rank() + 1)
        calls = [
            lambda: hvd.allreduce(mine, name="sum", op=hvd.Sum),
            lambda: hvd.allreduce_(mx.nd.ones((2,)), name="in place", op=hvd.Sum),
            lambda: hvd.broadcast(mine, 1, name="copy"),
            lambda: hvd.reducescatter(mine, op=hvd.Sum, name="part"),
            lambda: hvd.grouped_allreduce([mine, mine], name="group", op=hvd.Sum)[1],
        ]
        results = []
        for call in calls:
            if hvd.rank() == 1:
                hvd.barrier()  # rank 0 has called
            results.append(call())
            if hvd.rank() == 0:
                hvd.barrier()
        return [float(result.asnumpy()[0]) for result in results]

    assert two.run(run) == [[3.0, 2.0, 2.0, 3.0, 3.0]] * 2


def test_ranks_may_call_in_different_orders(two: World) -> None:
    def run() -> list[float]:
        places = range(20) if hvd.rank() == 0 else reversed(range(20))
        results = {place: hvd.allreduce(mx.nd.ones((1,)) * place, name=f"t{place}", op=hvd.Sum) for place in places}
        return [float(results[place].asscalar()) for place in range(20)]

    assert two.run(run) == [[2.0 * place for place in range(20)]] * 2


def test_calls_of_one_name_run_in_the_order_of_the_script(two: World) -> None:
    """Though the second one's array is ready first, on one rank."""

    def run() -> list[float]:
        results = []
        for step in range(5):
            slow = mx.nd.ones((400, 400))
            for _ in range(5 if hvd.rank() == 0 else 0):
                slow = mx.nd.dot(slow, slow) / 400
            first = hvd.allreduce(slow[0][:1] * (step + 1), name="same", op=hvd.Sum)
            second = hvd.allreduce(mx.nd.ones((1,)) * 100, name="same", op=hvd.Sum)
            results += [float(second.asscalar()), float(first.asscalar())]
        return results

    expected = [value for step in range(5) for value in (200.0, 2.0 * (step + 1))]
    assert two.run(run) == [pytest.approx(expected)] * 2


def test_calls_without_a_name_meet_in_the_order_of_the_script(two: World) -> None:
    def run() -> list[float]:
        results = []
        for step in range(4):
            slow = mx.nd.ones((300, 300))
            for _ in range(4 if hvd.rank() == step % 2 else 0):
                slow = mx.nd.dot(slow, slow) / 300
            results.append(hvd.allreduce(slow[0][:1] * 10, op=hvd.Sum))
            results.append(hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum))
        return [float(result.asscalar()) for result in results]

    assert two.run(run) == [pytest.approx([20.0, 2.0] * 4)] * 2


def test_calls_without_a_name_leave_no_names_behind(two: World) -> None:
    def run() -> int:
        one, seen, push = mx.nd.ones((1,)), set(), ops.push

        def pushed(label: str, request: Any, *rest: Any) -> None:
            seen.add(request.name)
            push(label, request, *rest)

        ops.push = pushed
        try:
            results = [hvd.allreduce(one * number, op=hvd.Sum) for number in range(3 * ops.MAX_UNNAMED)]
        finally:
            ops.push = push
        assert [float(result.asscalar()) for result in results] == [2.0 * n for n in range(len(results))]
        return len(seen) // ops.MAX_UNNAMED

    assert two.run(run) == [1, 1]


def test_arrays_in_layouts_of_onednn_are_sent_as_their_values(two: World) -> None:
    def run() -> list[Any]:
        assert mx.runtime.Features().is_enabled("MKLDNN")
        random = np.random.RandomState(hvd.rank())
        image, kernel = random.randn(2, 16, 8, 8), random.randn(16, 16, 3, 3)

        def made() -> Any:
            made = mx.nd.Convolution(
                mx.nd.array(image), mx.nd.array(kernel), no_bias=True, kernel=(3, 3), num_filter=16
            )
            return mx.nd.Convolution(made, mx.nd.array(kernel), no_bias=True, kernel=(3, 3), num_filter=16)

        mine = made().asnumpy()
        wanted = hvd.allgather(mx.nd.array(mine).expand_dims(0)).asnumpy()
        return [
            np.array_equal(hvd.allreduce(made(), op=hvd.Sum).asnumpy(), wanted[0] + wanted[1]),
            np.array_equal(hvd.allreduce_(made(), op=hvd.Max).asnumpy(), np.maximum(wanted[0], wanted[1])),
            np.array_equal(hvd.broadcast_(made(), 1).asnumpy(), wanted[1]),
            np.array_equal(hvd.allgather(made()).asnumpy(), np.concatenate(list(wanted))),
            np.array_equal(hvd.reducescatter(made(), op=hvd.Min).asnumpy()[0], np.minimum(*wanted)[hvd.rank()]),
        ]

    assert two.run(run) == [[True] * 5] * 2


def test_parts_of_an_array_and_arrays_given_twice(two: World) -> None:
    def run() -> list[Any]:
        whole = mx.nd.arange(8).reshape((4, 2))
        hvd.allreduce_(whole[1:3], op=hvd.Sum)
        parts = whole.copy()
        hvd.grouped_allreduce_([parts[0:1], parts[2:3]], op=hvd.Sum)
        twice = hvd.grouped_allreduce([whole, whole, whole[3]], op=hvd.Sum)
        return [whole.asnumpy().tolist(), parts.asnumpy().tolist(), [array.asnumpy().tolist() for array in twice]]

    whole = [[0.0, 1.0], [4.0, 6.0], [8.0, 10.0], [6.0, 7.0]]
    parts = [[0.0, 2.0], [4.0, 6.0], [16.0, 20.0], [6.0, 7.0]]
    double = (2 * np.array(whole)).tolist()
    assert two.run(run) == [[whole, parts, [double, double, double[3]]]] * 2


def test_a_result_is_an_array_of_the_kind_that_was_given(two: World) -> None:
    def run() -> list[bool]:
        kinds = []
        for ones in (mx.nd.ones((2,)), mx.np.ones((2,))):
            results = [
                hvd.allreduce(ones),
                hvd.broadcast(ones, 0),
                hvd.reducescatter(ones),
                hvd.allgather(ones),
                hvd.alltoall(ones),
                hvd.allreduce_(ones),
            ]
            kinds += [type(result) is type(ones) for result in results]
        return kinds

    assert two.run(run) == [[True] * 12] * 2


def test_a_result_without_rows_is_an_empty_array(two: World) -> None:
    """Though a length of 0 stands for an unknown one where MXNet does not have NumPy's shapes."""

    def run() -> list[tuple[int, ...]]:
        with mx.util.np_shape(False):
            one = mx.nd.ones((1, 3))
            results = [hvd.reducescatter(one), hvd.alltoall(one, [1, 0])[0]]
        return [result.asnumpy().shape for result in results]

    assert two.run(run) == [[(1, 3), (2, 3)], [(0, 3), (0, 3)]]


def failing() -> Any:
    """An array whose computation fails when MXNet runs it."""
    return mx.nd.random.normal(0, -1, (3,))


def test_the_peers_are_told_if_an_array_cannot_be_computed(two: World) -> None:
    def run() -> list[str]:
        calls = {
            "one": lambda array: hvd.allreduce(array, name="one"),
            "place": lambda array: hvd.allreduce_(array, name="place"),
            "many": lambda array: hvd.grouped_allreduce([mx.nd.ones((1,)), array], name="many")[0],
            "rows": lambda array: hvd.allgather(array, name="rows"),
            "every": lambda array: hvd.alltoall(array, [1, 1], name="every"),
        }
        texts = []
        for call in calls.values():
            with pytest.raises(mx.base.MXNetError) as caught:
                call(failing() if hvd.rank() == 1 else mx.nd.ones((3,))).wait_to_read()
            texts.append(str(caught.value))
            assert hvd.allreduce(mx.nd.ones((1,)), name="one", op=hvd.Sum).asscalar() == 2.0
        return texts

    peer, own = two.run(run)
    assert len(peer) == len(own) == 5
    assert all("rank 1 could not call" in text for text in peer), peer
    assert all("rank 1" not in text and ("scale" in text or "sigma" in text) for text in own), own


def test_a_failed_call_is_raised_by_who_reads_its_results_and_what_is_made_of_them(two: World) -> None:
    def run() -> None:
        sum_ = hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="uneven")
        made = sum_ * 2 + 1  # nothing is raised yet
        with pytest.raises(mx.base.MXNetError, match="expected shape") as caught:
            made.asnumpy()
        assert isinstance(caught.value, hvd.HorovodInternalError)

    two.run(run)


def test_mxnets_list_of_failures_does_not_move_while_its_threads_search_it() -> None:
    """It has no lock. Where it moved, about one of ten jobs beside busy processes crashed with a broken heap."""

    def run() -> list[tuple[int, int]]:
        def sizes() -> tuple[int, int]:
            """Of ThreadedEngine::global_exception_refs_ in MXNet 1.9.1: what is in it, and what it has room for."""
            engine = mx.base._LIB._ZN5mxnet6Engine3GetEv
            engine.restype = ctypes.c_void_p
            begin, end, room = (ctypes.c_uint64 * 3).from_address(engine() + 0x78)
            return (end - begin) // 16, (room - begin) // 16

        hvd.init()
        found = [sizes()]
        failed = [hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name=f"uneven.{place}") for place in range(100)]
        for array in failed:
            with pytest.raises(hvd.HorovodInternalError):
                array.wait_to_read()
        return [*found, sizes()]

    with World(2) as world:
        for before, after in world.run(run):
            assert before[0] == 0 and after[0] == 100, "the list is not where this test looks for it"
            assert before[1] == after[1] >= 4096


def test_nothing_is_changed_in_place_while_autograd_records(two: World) -> None:
    """The gradient would be that of another function. The rank that waits is told."""

    def run() -> list[str]:
        weight = mx.nd.ones((3,))
        weight.attach_grad()
        texts = []
        for call in (
            lambda array: hvd.allreduce_(array, name="a"),
            lambda array: hvd.allreduce_(array),
            lambda array: hvd.grouped_allreduce_([array], name="g"),
            lambda array: hvd.broadcast_(array, 0, name="b"),
        ):
            if hvd.rank() == 0:
                with mx.autograd.record(), pytest.raises(ValueError, match="it changes an array in place") as caught:
                    call(weight * 2)
            else:
                with pytest.raises(mx.base.MXNetError, match="rank 0 could not call") as caught:
                    call(mx.nd.ones((3,)))
                    mx.nd.waitall()
            texts.append(str(caught.value))
        with mx.autograd.record():
            with mx.autograd.pause():
                statistic = hvd.allreduce_(mx.nd.ones((3,)) * 2, name="paused")
            loss = (weight * statistic).sum()
        loss.backward()
        assert weight.grad.asnumpy().tolist() == [2, 2, 2]
        return texts

    for texts in two.run(run):
        assert all("hint: call it outside of autograd.record()" in text for text in texts), texts


def test_splits_are_integers(two: World) -> None:
    """What mx.nd.array makes of a list is float32: one rank's mistake reaches the other."""

    def run() -> list[Any]:
        rows, kinds = mx.nd.arange(3) + 10 * hvd.rank(), [mx.nd.array([1, 2], dtype=of) for of in ("int32", "int64")]
        results = []
        for splits in (*kinds, mx.np.array([1, 2], dtype="int64"), [1, 2]):
            received, counts = hvd.alltoall(rows, splits)
            results.append([received.asnumpy().tolist(), counts.asnumpy().tolist()])
        for dtype in ("float32", "uint8", "float64"):
            splits = mx.nd.array([1, 2], dtype=dtype if hvd.rank() == 1 else "int32")
            wanted = rf"rank 1.*expected a list of ints or .* int32 or int64 tensor, got {dtype} of shape \[2\]"
            with pytest.raises(ValueError if hvd.rank() == 1 else mx.base.MXNetError, match=wanted):
                hvd.alltoall(rows, splits, name=dtype)
        return results

    assert two.run(run) == [[[[0.0, 10.0], [1, 1]]] * 4, [[[1.0, 2.0, 11.0, 12.0], [2, 2]]] * 4]


def test_sparse_arrays_are_refused_with_a_hint(two: World) -> None:
    def run() -> str:
        array = mx.nd.ones((2, 2))
        with pytest.raises((ValueError, mx.base.MXNetError)) as caught:
            hvd.allreduce(array.tostype("row_sparse") if hvd.rank() else array, name="sparse").wait_to_read()
        return str(caught.value)

    for text in two.run(run):
        assert "rank 1" in text and "row_sparse" in text and "hint: call .tostype('default')" in text


def test_calls_that_outlive_the_generation_fail_and_the_next_one_works() -> None:
    def run() -> list[Any]:
        results = []
        for _ in range(2):
            hvd.init()
            assert hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).asscalar() == 2.0  # calls count from 0 on all ranks
            if hvd.rank() == 0:
                hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).wait_to_read()
                alone = hvd.allreduce(mx.nd.ones((1,)), name="alone")
            else:
                hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).wait_to_read()
            hvd.barrier()
            hvd.shutdown()
            if hvd.is_initialized() is False and "alone" in locals():
                with pytest.raises(mx.base.MXNetError) as caught:
                    alone.wait_to_read()
                results.append(type(caught.value).__name__)
                del alone
        return results

    with World(2) as world:
        ended, nothing = world.run(run)
    assert nothing == [] and len(ended) == 2 and set(ended) <= {"NotRunningError", "RankLeftError"}, ended


def test_an_error_that_is_read_late_is_no_error_of_the_next_generation() -> None:
    def run() -> str:
        hvd.init()
        if hvd.rank() == 0:
            late = hvd.allreduce(mx.nd.ones((1,)), name="late")
            with pytest.raises(hvd.HorovodInternalError, match="rank 1 has left"):
                hvd.barrier()
        hvd.shutdown()
        hvd.init()
        if hvd.rank() == 0:
            # On a busy machine MXNet's engine may not have begun it yet.
            with pytest.raises(
                mx.base.MXNetError, match=r"rank 1 has left|shut down before `allreduce\.late` could begin"
            ):
                late.wait_to_read()
        return str(context.current().failure)

    with World(2) as world:
        assert world.run(run) == ["None", "None"]


def test_a_lost_rank_is_named_by_mxnet_s_error() -> None:
    def reduce() -> None:
        hvd.init()
        hvd.allreduce_(mx.nd.ones((4,)), name="gradient").wait_to_read()

    def go_on() -> tuple[str, Any]:
        if hvd.rank() == 1:
            os.kill(os.getpid(), 9)
        for _ in range(3):
            hvd.allreduce_(mx.nd.ones((4,)), name="gradient")
        with pytest.raises(mx.base.MXNetError) as caught:
            mx.nd.waitall()
        return str(caught.value), getattr(caught.value, "failed_rank", None)

    with World(2) as world:
        world.run(reduce)  # returns when both have the result
        outcome, lost = world.run_each(go_on)
        assert lost.died
        assert outcome.ok, outcome.traceback
        text, rank = outcome.value
    assert rank == 1 and "rank 1" in text and "gradient" in text and "rank-lost" in text
