# SPDX-License-Identifier: Apache-2.0
"""allreduce_ of a tensor whose request is prepared: one call of the extension, or of its fallback in Python."""

from __future__ import annotations

import pytest
from support.world import World

from horovod.core import calls


@pytest.mark.parametrize("way", ["run_known", "_run_known"])
def test_a_known_tensor_is_reduced_in_place_and_what_is_wrong_is_told(way: str) -> None:
    def run() -> list[float]:
        import torch

        import horovod.torch as hvd
        from horovod.torch.tensors import TorchAdapter

        known = []

        def noted(*arguments: object) -> object:
            known.append(getattr(calls, way)(*arguments))
            return known[-1]

        TorchAdapter.run_known = staticmethod(noted)
        hvd.init()
        tensor, sums = torch.empty(3), []
        for step in range(4):
            version = tensor.fill_(hvd.rank() + step)._version
            assert hvd.allreduce_(tensor, name="a", op=hvd.Sum) is tensor and tensor._version > version
            sums.append(float(tensor[0]))
        assert known == [False, False, None, None]
        with pytest.raises(ValueError, match="op=True"):
            hvd.allreduce_(tensor, name="a", op=True)
        with torch.inference_mode():
            ones = torch.ones(3)
            for _ in range(2):
                hvd.allreduce_(ones, name="a", op=hvd.Sum)
        assert known[4:] == [None, None] and float(ones[2]) == 4
        with pytest.raises(TypeError, match=r"expected a torch.Tensor, got list"):
            hvd.allreduce_([tensor], name="a", op=hvd.Sum)
        with pytest.raises(hvd.HorovodInternalError, match=r"shape"):
            hvd.allreduce_(torch.ones(3 - hvd.rank()), name="a", op=hvd.Sum)
        return sums

    with World(2) as world:
        assert world.run(run) == [[1.0, 3.0, 5.0, 7.0]] * 2
