# SPDX-License-Identifier: Apache-2.0
"""The contract's results in ranks that another launcher started.

    mpirun ... python -m support.scripts.contract_rows DTYPE...

Prints what went wrong, one line each, and in the end `RANK of SIZE over TRANSPORT: ROWS rows`. TRANSPORT is what joins
the hosts.
"""

from __future__ import annotations

import os
import sys

from contract import test_results

import horovod.core as hvd
from support import frameworks, reference


def main(dtypes: list[str]) -> None:
    hvd.init(process_sets="dynamic")
    # What the reference goes by. Ranks are in the order of their hosts.
    first_of = [rank for rank, local in enumerate(hvd.allgather_object(hvd.local_rank())) if local == 0]
    ends = [*first_of[1:], hvd.size()]
    os.environ["HOROVOD_PRETEND_HOSTS"] = ",".join(str(end - first) for first, end in zip(first_of, ends, strict=True))
    statistics = hvd.statistics()
    transport = statistics.get("between", statistics)["transport"]
    core = frameworks.load("core")
    others = hvd.add_process_set(list(range(1, hvd.size())))
    rows = 0
    for dtype in dtypes:
        wrong, count = test_results.wrong_rows_of(core, dtype, reference.same_bits)
        rows += count
        if others.included():
            more, count = test_results.wrong_rows_of(frameworks.InSet(core, others), dtype, reference.same_bits)
            wrong += more
            rows += count
        print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
    hvd.barrier()
    print(f"{hvd.rank()} of {hvd.size()} over {transport}: {rows} rows", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
