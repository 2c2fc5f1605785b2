# SPDX-License-Identifier: Apache-2.0
"""Which nets a solver names, in its seven ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from horovod.caffe.errors import CaffeError
from horovod.caffe.net import read_net
from horovod.caffe.prototxt import Origin
from horovod.caffe.upgrade import upgrade_net

__all__ = ["Source", "net_sources"]


@dataclass
class Source:
    """A net as it stands in a file. `states`: what is merged over its own state."""

    proto: Any
    origin: Origin
    states: tuple[Any, ...] = ()


def _inline(proto: Any, name: str) -> Source:
    upgrade_net(proto)
    return Source(proto, Origin(f"{name} of the solver"))


def net_sources(solver: Any) -> tuple[Source, list[Source]]:
    """The train net and the test nets. Raises CaffeError."""
    given = [name for name in ("train_net_param", "train_net", "net_param", "net") if solver.HasField(name)]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        raise CaffeError(f"expected one train net, as net, net_param, train_net or train_net_param; got {found}")
    name, value = given[0], getattr(solver, given[0])
    source = Source(*read_net(value)) if isinstance(value, str) else _inline(value, name)
    tests = [_inline(proto, "test_net_param") for proto in solver.test_net_param]
    tests += [Source(*read_net(path)) for path in solver.test_net]
    if name in ("net", "net_param"):
        generic = len(solver.test_iter) - len(tests)
        tests += [Source(source.proto, source.origin) for _ in range(generic)]
    if len(solver.test_iter) != len(tests):
        raise CaffeError(f"expected a test_iter for each test net: got {len(solver.test_iter)} for {len(tests)}")
    if tests and solver.test_interval < 1:
        raise CaffeError("test_interval must be at least 1, because there is a test net")
    if solver.test_state and len(solver.test_state) != len(tests):
        raise CaffeError(f"expected a test_state for each test net: got {len(solver.test_state)} for {len(tests)}")
    if any(count < 1 for count in solver.test_iter):
        raise CaffeError("test_iter must be at least 1")
    for index, state in enumerate(solver.test_state):
        tests[index].states = (state,)
    return source, tests
