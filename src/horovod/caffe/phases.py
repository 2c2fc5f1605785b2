# SPDX-License-Identifier: Apache-2.0
"""Which layers of a net are there: the rules include and exclude, by phase, level and stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.caffe.errors import CaffeError
from horovod.caffe.schema import message

__all__ = ["NetState", "filtered"]


@dataclass(frozen=True)
class NetState:
    """The state that rules are compared with. `phase`: 0 is TRAIN, 1 is TEST."""

    phase: int
    level: int = 0
    stages: Sequence[str] = ()

    @classmethod
    def of(cls, *states: Any, phase: int) -> NetState:
        """The states, messages NetState, merged in this order over the phase."""
        merged = message("NetState")(phase=phase)
        for state in states:
            merged.MergeFrom(state)
        return cls(merged.phase, merged.level, tuple(merged.stage))

    def meets(self, rule: Any) -> bool:
        """True if every condition of the NetStateRule holds."""
        return (
            (not rule.HasField("phase") or rule.phase == self.phase)
            and (not rule.HasField("min_level") or self.level >= rule.min_level)
            and (not rule.HasField("max_level") or self.level <= rule.max_level)
            and all(stage in self.stages for stage in rule.stage)
            and not any(stage in self.stages for stage in rule.not_stage)
        )


def filtered(net: Any, state: NetState) -> Any:
    """The net with the layers that are there in this state."""
    result = message("NetParameter")()
    result.CopyFrom(net)
    del result.layer[:]
    for layer in net.layer:
        if layer.include and layer.exclude:
            raise CaffeError(f"layer {layer.name!r} has both include and exclude; expected one of them")
        there = any(map(state.meets, layer.include)) if layer.include else not any(map(state.meets, layer.exclude))
        if there:
            result.layer.add().CopyFrom(layer)
    result.state.CopyFrom(message("NetState")(phase=state.phase, level=state.level, stage=list(state.stages)))
    return result
