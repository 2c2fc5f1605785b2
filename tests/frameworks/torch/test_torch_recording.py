# SPDX-License-Identifier: Apache-2.0
"""What a profile knows of PyTorch: sizes of gradients, and moments on a GPU, whose events are made up here."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
import horovod.torch as hvd
from horovod.torch.recording import _described, _GpuClock


def test_gradients_are_described_by_what_would_travel() -> None:
    assert _described(torch.zeros(3, 5)) == ("float32", 60, False)
    assert _described(torch.zeros(4, dtype=torch.bfloat16)) == ("bfloat16", 8, False)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 7]]), torch.ones(2, 3), (10, 3), check_invariants=True)
    assert _described(sparse) == ("float32", 2 * 8 + 6 * 4, True)


def test_moments_on_a_gpu_are_events_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        recorded: list[Event] = []

        def __init__(self, enable_timing: bool = False) -> None:
            self.timed, self.waited = enable_timing, False

        def record(self) -> None:
            Event.recorded.append(self)

        def synchronize(self) -> None:
            self.waited = True

        def elapsed_time(self, end: Event) -> float:
            assert self.timed and end.waited
            return 1.5 * (Event.recorded.index(end) - Event.recorded.index(self))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = _GpuClock()
    moments = [clock.now() for _ in range(3)]
    assert not any(event.waited for event in moments), "backward would wait for the GPU"
    assert clock.between_ms(moments[0], moments[2]) == 3.0


def test_adasum_cannot_be_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks step by themselves: there are no gradients that wait."""
    monkeypatch.setenv("HOROVOD_PROFILE", "profile.json")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="op=Adasum cannot be profiled"):
        hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum)
