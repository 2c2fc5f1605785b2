# SPDX-License-Identifier: Apache-2.0
"""Programs of ranks that several tests run, each as the text of a script."""

__all__ = ["COLLECTIVES", "STARTED", "TRAINING"]

# The core contract's essentials, for 4 ranks. Each prints its place on its host, among hosts, and a digest of results.
COLLECTIVES = """
import hashlib
import numpy as np
import horovod.core as hvd
some = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 2, 3])]
hvd.init(process_sets=some)
rank = hvd.rank()
digest = hashlib.sha256()
random = np.random.default_rng(rank)
for count in (1, 1000, 300_001):
    for op in (hvd.Sum, hvd.Average, hvd.Min):
        mine = random.standard_normal(count).astype(np.float32)
        result = hvd.allreduce(mine, op=op, name=f"reduced.{count}.{op}")
        digest.update(result.tobytes())
    root = hvd.broadcast(random.standard_normal(count), root_rank=3, name=f"root.{count}")
    digest.update(root.tobytes())
rows = hvd.allgather(random.standard_normal((rank + 1, 3)), name="rows")
assert rows.shape == (10, 3)
digest.update(rows.tobytes())
for members in some:
    if members.included():
        part = hvd.allreduce(random.standard_normal(999), op=hvd.Sum, name="part", process_set=members)
        digest.update(part.tobytes())
total = hvd.allreduce(np.array([2.0**rank]), op=hvd.Sum, name="total")
assert total.tolist() == [15.0]
print(hvd.local_rank(), hvd.cross_rank(), digest.hexdigest())
"""

# COLLECTIVES and a second generation, for any launcher. Each rank writes what it found into FOLDER/RANK.json.
STARTED = (
    "import json, os, sys\nfrom pathlib import Path\n"
    + COLLECTIVES
    + """
from horovod.core.context import current
place = [rank, hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
found = {"place": place, "digest": digest.hexdigest(), "host": os.uname().nodename, "mpi": current().world.has_mpi}
hvd.shutdown()
hvd.init()
found["again"] = hvd.allgather(np.array([rank]), name="again").tolist()
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
"""
)

# FOLDER VICTIM END [RANK...]: all ranks train until VICTIM runs END. The others write the error that they get into
# FOLDER/RANK, and end when those RANKs have done so as well: a launcher may kill the neighbours of one that has ended.
TRAINING = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import horovod.core as hvd
from horovod.common.exceptions import HorovodInternalError
hvd.init()
try:
    for step in range(10**9):
        hvd.allreduce(np.ones(1000), name="gradients")
        if step == 50 and hvd.rank() == int(sys.argv[2]):
            exec(sys.argv[3])
except HorovodInternalError as error:
    Path(sys.argv[1], str(hvd.rank())).write_text(str(error))
    for other in sys.argv[4:]:
        while not Path(sys.argv[1], other).exists():
            time.sleep(0.02)
    raise
"""
