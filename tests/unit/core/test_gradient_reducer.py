# SPDX-License-Identifier: Apache-2.0
"""The reducer's decisions, with numbers for gradients and a dict for each rank's peers. No framework, no process."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from horovod.core.compression import Compressor, NoneCompressor, compressing
from horovod.gradients.reducer import GradientReducer

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Parameter:
    grad: Array | None = None
    trained: bool = True
    changes: int = 0  # of the gradient, in place


class Gradients:
    def wanted(self, parameter: Parameter) -> bool:
        return parameter.trained

    def current(self, parameter: Parameter) -> object | None:
        return parameter.grad

    def version(self, parameter: Parameter) -> int:
        return parameter.changes

    def dense(self, parameter: Parameter) -> Array:
        assert parameter.grad is not None
        return parameter.grad

    def zeros(self, parameter: Parameter) -> Array:
        return np.zeros(2)

    def nothing(self, parameter: Parameter) -> Array:
        return np.full(2, -0.0)

    def is_nothing(self, reduced: Array) -> bool:
        return bool(np.signbit(reduced).all() and not reduced.any())

    def clear(self, parameter: Parameter) -> None:
        parameter.grad = None

    def store(self, parameter: Parameter, reduced: Array) -> None:
        parameter.grad = reduced

    def add(self, parameter: Parameter, reduced: Array) -> None:
        assert parameter.grad is not None
        parameter.grad += reduced
        parameter.changes += 1

    def any(self, reduced: Array) -> bool:
        return bool(reduced.any())


class Started:
    """A reduction whose result is its own value plus what the peers gave under that name."""

    def __init__(self, world: "Peers", tensor: Array, name: str) -> None:
        self.world, self.tensor, self.name = world, tensor, name

    def wait(self) -> Array:
        self.world.events.append(("wait", self.name))
        error = self.world.errors.pop(self.name, None)
        if error is not None:
            raise error
        self.tensor += self.world.gives.get(self.name, -0.0)
        return self.tensor


class Peers:
    def __init__(self) -> None:
        self.gives: dict[str, float] = {}
        self.errors: dict[str, BaseException] = {}
        self.events: list[tuple[str, str]] = []
        self.sent: dict[str, list[float]] = {}

    def start(self, tensor: Array, name: str) -> Started:
        self.events.append(("start", name))
        self.sent.setdefault(name, []).append(float(tensor[0]))
        return Started(self, tensor, name)


class Job:
    """One rank with parameters `a` and `b`."""

    def __init__(self, passes: int = 1, compression: type[Compressor] = NoneCompressor) -> None:
        self.peers = Peers()
        self.told: list[str] = []
        self.a, self.b = Parameter(), Parameter()
        self.reducer: GradientReducer[Parameter, Array] = GradientReducer(
            Gradients(), compressing(self.peers.start, compression, self.tell), passes_per_step=passes
        )
        self.numbers = {"a": self.reducer.add("a", self.a), "b": self.reducer.add("b", self.b)}

    def tell(self, name: str, error: Exception) -> None:
        self.told.append(f"{name}: {error}")

    def backward(self, **gradients: float) -> None:
        for name, value in gradients.items():
            parameter: Parameter = getattr(self, name)
            if parameter.grad is None:
                parameter.grad = np.full(2, value)
            else:
                parameter.grad += value
                parameter.changes += 1
            self.reducer.ready(self.numbers[name])
        self.reducer.finish()

    def write(self, **gradients: float) -> None:
        """Changes gradients in place, by other means than backward."""
        for name, value in gradients.items():
            parameter: Parameter = getattr(self, name)
            assert parameter.grad is not None
            parameter.grad[:] = value
            parameter.changes += 1

    def zero_grad(self) -> None:
        self.a.grad = self.b.grad = None
        self.reducer.begin_step()

    def values(self) -> tuple[float, float]:
        assert self.a.grad is not None and self.b.grad is not None
        return float(self.a.grad[0]), float(self.b.grad[0])


def test_a_reduction_starts_when_its_gradient_is_ready_and_is_waited_for_in_order() -> None:
    job = Job()
    job.peers.gives = {"a": 10.0, "b": 20.0}
    job.backward(b=2.0, a=1.0)
    assert job.peers.events == [("start", "b"), ("start", "a"), ("wait", "b"), ("wait", "a")]
    assert job.values() == (11.0, 22.0)


def test_gradients_of_several_passes_are_summed_before_one_reduction() -> None:
    job = Job(passes=3)
    job.backward(a=1.0, b=1.0)
    job.backward(a=1.0, b=1.0)
    assert job.peers.events == []
    job.backward(a=1.0, b=1.0)
    assert job.peers.sent == {"a": [3.0], "b": [3.0]}
    job.zero_grad()
    job.backward(a=1.0, b=1.0)
    assert job.peers.sent == {"a": [3.0], "b": [3.0]}


def test_a_parameter_without_a_gradient_gets_what_the_others_have() -> None:
    job = Job()
    job.peers.gives = {"b": 7.0}
    job.backward(a=1.0)
    assert job.peers.sent == {"a": [1.0], "b": [0.0]}
    assert job.values() == (1.0, 7.0)


def test_a_parameter_without_a_gradient_anywhere_keeps_none() -> None:
    job = Job()
    job.peers.gives = {"b": 0.0}
    job.backward(a=1.0)
    assert job.values() == (1.0, 0.0), "a peer has a gradient of zeros"
    job.zero_grad()
    job.peers.gives = {}
    for _ in range(2):
        job.backward(a=1.0)
        assert job.b.grad is None
        job.reducer.complete_step()
        job.reducer.begin_step()
        job.a.grad = None


def test_a_frozen_parameter_is_left_alone() -> None:
    job = Job()
    job.b.trained = False
    job.backward(a=1.0)
    assert job.peers.sent == {"a": [1.0]}
    assert job.b.grad is None


def test_an_error_in_one_gradient_does_not_leave_the_peers_without_the_others() -> None:
    job = Job()
    start = job.peers.start

    def start_but_a(tensor: Array, name: str) -> Started:
        if name == "a":
            raise ValueError("a cannot be sent")
        return start(tensor, name)

    job.reducer._start_reduction = start_but_a
    job.a.grad, job.b.grad = np.ones(2), np.ones(2)
    with pytest.raises(ValueError, match="a cannot be sent"):
        job.reducer.complete_step()
    assert job.peers.events == [("start", "b"), ("wait", "b")]


def test_a_gradient_from_an_earlier_pass_is_sent_when_the_step_is_due() -> None:
    job = Job(passes=2)
    job.backward(a=1.0, b=5.0)
    job.backward(a=1.0)
    assert job.peers.sent == {"a": [2.0], "b": [5.0]}


def test_two_losses_with_their_own_parameters_are_reduced_once_each() -> None:
    job = Job()
    job.peers.gives = {"a": 10.0}
    job.backward(a=1.0)
    job.peers.gives = {"b": 20.0}
    job.backward(b=2.0)
    # a second time a is already everybody's: zeros are sent for it, and it keeps its value
    assert job.peers.sent == {"a": [1.0, 0.0], "b": [0.0, 2.0]}
    assert job.values() == (11.0, 22.0)


@pytest.mark.parametrize("clipped", [False, True])
def test_a_stale_gradient_is_not_counted_twice(clipped: bool) -> None:
    job = Job()
    job.backward(a=1.0, b=2.0)
    if clipped:
        job.write(a=0.5, b=1.0)
    job.reducer.begin_step()  # step() without zero_grad(): b is not used any more
    job.a.grad = None
    job.backward(a=3.0)
    assert job.peers.sent == {"a": [1.0, 3.0], "b": [2.0, 0.0]}
    assert job.values() == (3.0, 1.0 if clipped else 2.0)


def test_what_a_paused_pass_leaves_is_part_of_the_next_reduction() -> None:
    job = Job()
    job.reducer.paused = True
    job.backward(a=1.0, b=2.0)
    job.backward(a=1.0)
    assert job.peers.events == []
    job.reducer.paused = False
    job.backward(a=1.0)
    assert job.peers.sent == {"a": [3.0], "b": [2.0]}
    # Cleared in place: the gradient is still the object that the last round left.
    job.reducer.begin_step()
    job.write(a=0.0, b=0.0)
    job.reducer.paused = True
    job.backward(b=7.0)
    job.reducer.paused = False
    job.backward(a=5.0)
    assert job.peers.sent == {"a": [3.0, 5.0], "b": [2.0, 7.0]}


def test_what_a_paused_pass_leaves_is_reduced_before_the_step() -> None:
    job = Job()
    job.backward(a=1.0)
    job.reducer.paused = True
    job.backward(b=2.0)
    job.reducer.paused = False
    job.reducer.complete_step()
    assert job.peers.sent == {"a": [1.0, 0.0], "b": [0.0, 2.0]}


def test_a_pass_after_a_round_is_reduced_before_the_step() -> None:
    job = Job(passes=2)
    for _ in range(2):
        job.backward(a=1.0, b=1.0)
    job.a.grad = job.b.grad = None  # model.zero_grad() in a closure that an optimizer calls again
    job.backward(a=2.0, b=3.0)
    assert job.peers.sent == {"a": [2.0], "b": [2.0]}
    job.reducer.complete_step()
    assert job.peers.sent == {"a": [2.0, 2.0], "b": [2.0, 3.0]}


def test_a_gradient_set_by_hand_is_reduced_before_the_step() -> None:
    job = Job()
    job.a.grad, job.b.grad = np.full(2, 4.0), np.full(2, 5.0)
    job.reducer.complete_step()
    assert job.peers.sent == {"a": [4.0], "b": [5.0]}
    job.reducer.complete_step()
    assert job.peers.sent == {"a": [4.0], "b": [5.0]}


def test_a_gradient_that_replaces_the_reduced_one_is_reduced_if_that_does_no_harm() -> None:
    for harmless, sent in ((True, [1.0, 5.0]), (False, [1.0])):
        job = Job()
        job.reducer.reduces_again = harmless
        job.backward(a=1.0, b=2.0)
        job.reducer.complete_step()
        assert job.peers.sent["a"] == [1.0], "clipping in place, or nothing, is no reason"
        job.a.grad = np.full(2, 5.0)
        job.reducer.complete_step()
        assert job.peers.sent["a"] == sent


def test_a_gradient_written_in_place_is_reduced_in_every_step() -> None:
    job = Job()
    job.a.grad, job.b.grad = np.zeros(2), np.zeros(2)
    for value in (4.0, 6.0):
        job.write(a=value, b=value + 1)
        job.reducer.complete_step()
        job.reducer.begin_step()
    assert job.peers.sent == {"a": [4.0, 6.0], "b": [5.0, 7.0]}


def test_a_gradient_that_is_clipped_before_the_next_loss_of_the_step_is_not_counted_twice() -> None:
    job = Job()
    job.peers.gives = {"a": 10.0}
    job.backward(a=1.0)
    job.peers.gives = {}
    job.write(a=5.5)
    job.backward(b=2.0)
    assert job.peers.sent == {"a": [1.0, 0.0], "b": [0.0, 2.0]}
    assert job.values() == (5.5, 2.0)


@pytest.mark.parametrize("clipped", [False, True])
def test_backward_again_before_the_step_is_an_error_that_names_the_gradient(clipped: bool) -> None:
    job = Job()
    job.backward(a=1.0, b=1.0)
    if clipped:
        job.write(a=0.5, b=0.5)
    with pytest.raises(AssertionError, match=r"`a` was computed again .*\n?.*hint: set backward_passes_per_step"):
        job.backward(a=1.0)


def test_a_gradient_that_arrives_again_while_it_is_reduced_is_an_error() -> None:
    job = Job()
    job.a.grad = np.ones(2)
    job.reducer.ready(job.numbers["a"])
    with pytest.raises(AssertionError, match=r"`a` arrived again .*\n?.*hint: .*use_reentrant=False"):
        job.reducer.ready(job.numbers["a"])


def test_gradients_cleared_by_other_means_start_a_new_step() -> None:
    job = Job()
    job.backward(a=1.0, b=1.0)
    job.a.grad = job.b.grad = None  # model.zero_grad(), after a scaler has skipped step()
    job.backward(a=2.0, b=3.0)
    assert job.peers.sent == {"a": [1.0, 2.0], "b": [1.0, 3.0]}


def test_gradients_zeroed_in_place_by_other_means_start_a_new_step() -> None:
    job = Job(passes=2)
    for _ in range(2):
        job.backward(a=1.0, b=1.0)
    job.write(a=0.0, b=0.0)
    job.backward(a=2.0, b=3.0)
    job.backward(a=2.0)
    assert job.peers.sent == {"a": [2.0, 4.0], "b": [2.0, 3.0]}


def test_a_gradient_zeroed_in_place_begins_anew_while_others_stay_as_they_are() -> None:
    job = Job()
    job.backward(a=1.0, b=1.0)
    job.write(a=0.0)
    job.backward(a=2.0)
    assert job.peers.sent == {"a": [1.0, 2.0], "b": [1.0, 0.0]}
    with pytest.raises(AssertionError, match="`b` was computed again"):
        job.backward(b=1.0)


def test_a_loss_of_its_own_after_zeroing_in_place_may_follow_another_one() -> None:
    job = Job()
    job.backward(a=1.0, b=1.0)
    job.reducer.begin_step()
    job.write(a=0.0, b=0.0)
    job.backward(a=2.0)
    job.backward(b=3.0)
    assert job.peers.sent == {"a": [1.0, 2.0, 0.0], "b": [1.0, 0.0, 3.0]}
    assert job.values() == (2.0, 3.0)


def test_an_error_is_raised_after_all_reductions_are_done() -> None:
    job = Job()
    job.peers.errors = {"a": RuntimeError("first"), "b": RuntimeError("second")}
    with pytest.raises(RuntimeError, match="first"):
        job.backward(a=1.0, b=2.0)
    assert job.peers.events[-2:] == [("wait", "a"), ("wait", "b")]
    assert job.reducer.in_flight == []
    job.zero_grad()
    job.backward(a=1.0, b=2.0)
    assert job.peers.sent == {"a": [1.0, 1.0], "b": [2.0, 2.0]}


def test_an_interrupt_leaves_what_was_not_waited_for_in_flight() -> None:
    job = Job()
    job.peers.errors = {"a": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        job.backward(a=1.0, b=2.0)
    assert job.reducer.in_flight == ["a", "b"]


def test_what_travels_is_compressed_and_given_back_in_its_own_dtype() -> None:
    class Half(Compressor):
        @staticmethod
        def compress(tensor: Array) -> tuple[Array, Any]:
            return tensor.astype(np.float16), tensor.dtype

        @staticmethod
        def decompress(tensor: Array, ctx: Any) -> Array:
            return tensor.astype(ctx)

    job = Job(compression=Half)
    job.backward(a=1.0 + 2**-14, b=2.0)
    assert job.peers.sent["a"] == [1.0]
    assert job.a.grad is not None and job.a.grad.dtype == np.float64


def test_the_others_are_told_of_a_gradient_that_cannot_be_compressed() -> None:
    class Broken(NoneCompressor):
        @staticmethod
        def compress(tensor: Array) -> tuple[Array, Any]:
            if tensor[0] == 3.0:
                raise RuntimeError("no room")
            return tensor, None

    job = Job(compression=Broken)
    with pytest.raises(RuntimeError, match="no room"):
        job.backward(a=3.0, b=2.0)
    assert job.told == ["a: no room"]


def test_the_trace_has_each_event_in_order_of_time() -> None:
    job = Job()
    job.reducer.trace = []
    job.backward(a=1.0, b=2.0)
    assert [(event, name) for event, name, _ in job.reducer.trace] == [
        ("ready", "a"),
        ("start", "a"),
        ("ready", "b"),
        ("start", "b"),
        ("done", "a"),
        ("done", "b"),
    ]
    times = [time_ns for *_, time_ns in job.reducer.trace]
    assert times == sorted(times)
