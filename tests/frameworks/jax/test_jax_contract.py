# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through JAX: at once, and in functions that are compiled, on two ranks over
shared memory and on three over TCP.

What lies behind JAX's arrays is tested for the core, with all dtypes and worlds. So these run a part of the dtypes, and
in compiled functions fewer still, as each row is compiled; all of them, also on two hosts, with THOROUGH=1, which `make
check-all` sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract import test_errors as errors
from contract import test_results as results
from support import contract
from support.extent import THOROUGH
from support.frameworks import JAX, jax_world
from support.world import WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("jax", reason="not run: jax is not installed")

AT_ONCE = "jax"
DTYPES = {"jax": ("uint8", "bfloat16", "float32", "bool"), "jax_jit": ("float32",)}
WHAT_TO_RUN = [
    (size, mode, dtype)
    for size in ((2, 3, 4) if THOROUGH else (2, 3))
    for mode in JAX
    for dtype in (DTYPE_NAMES if THOROUGH else DTYPES[mode])
    if size == 2 or (mode, dtype) == (AT_ONCE, "float32") or THOROUGH
]
# What is compiled has shapes that do not depend on other ranks, and each kind of operation its own names.
NOT_COMPILED = {"kind", "columns", "gathered dimensions", "gathered member", "alltoall columns", "alltoall dtype"}
ALSO = (
    errors.test_a_name_in_flight_is_refused_at_once_and_does_not_hurt_the_first,
    errors.test_names_may_hold_any_text,
    errors.test_what_cannot_be_pickled_fails_on_all_ranks,
)
MANY = results.test_many_operations_in_flight_may_start_in_another_order_on_every_rank
ROWS = [
    *contract.rows(AT_ONCE, JAX, {"no tensor"}, ALSO),  # JAX has nothing in place
    contract.row(results.test_a_reducescatter_has_the_bits_of_the_allreduce, AT_ONCE, "tcp"),
    *contract.adasums(JAX[1]),
    contract.compiled(AT_ONCE),
    contract.row(MANY, AT_ONCE, marks=pytest.mark.thorough),
]
for number in (2, 3) if THOROUGH else (2,):
    ROWS += contract.disagreements(AT_ONCE, number) + contract.disagreements(JAX[1], number, NOT_COMPILED)


@pytest.fixture
def jax_worlds(worlds: WorldPool) -> Any:
    return contract.any_transport(jax_world, worlds)


@pytest.mark.slow("compiles with XLA")
@pytest.mark.parametrize(("size", "framework", "dtype"), WHAT_TO_RUN)
def test_results(jax_worlds: Any, size: int, framework: str, dtype: str) -> None:
    for wrong in jax_worlds(size).run(results.wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize(("test", "arguments"), ROWS)
def test_contract(jax_worlds: Any, test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(jax_worlds, *arguments)
