# SPDX-License-Identifier: Apache-2.0
"""The command lines of the pages, and where each of them is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from support.pages import PAGES, ROOT

PROGRAMS = [
    "horovodrun",
    "pip",
    "make",
    "python",
    "python3",
    "mpirun",
    "mpiexec",
    "srun",
    "sbatch",
    "docker",
    "apptainer",
    "caffe",
    "tools/",
]
_FENCED = re.compile(r"^```(?!python)\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?:(?: {4,}.*)?\n)+)")


class Command(NamedTuple):
    page: str
    text: str  # without a prompt, assignments in front, and a comment behind

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


NETWORK = "not run: it downloads; `make check-all` installs a wheel in a bare environment (tools/try-wheel)"
PAGES_RUN = "tests/processes/launcher/test_scripts_of_pages.py"
# (page, beginning of the command): the file that runs it, or why it is not run. The first row that fits counts.
WHERE: list[tuple[str, str, str]] = [
    ("CONTRIBUTING.md", "make ", ".ci/run"),
    ("README.md", "make ", ".ci/run"),
    ("docs/guides/containers.md", "make wheels", "tools/check-all"),
    ("", "pip ", NETWORK),
    ("README.md", "horovodrun ", PAGES_RUN),
    ("docs/quickstart.md", "horovodrun ", PAGES_RUN),
    ("docs/process-sets.md", "horovodrun ", PAGES_RUN),
    ("docs/lightning.md", "horovodrun ", "tests/schedulers/test_lightning.py"),
    ("docs/ray.md", "python ", "tests/schedulers/test_ray_libraries.py"),
    ("docs/torch-distributed.md", "", "tests/frameworks/torch/distributed/test_torch_distributed_start.py"),
    ("docs/frameworks/jax.md", "horovodrun ", PAGES_RUN),
    ("docs/frameworks/numpy.md", "horovodrun ", PAGES_RUN),
    ("docs/frameworks/mxnet.md", "horovodrun ", "tests/frameworks/mxnet/test_mxnet_examples.py"),
    ("docs/algorithms.md", "horovodrun ", "tests/cluster/data/test_strategies.py"),
    ("docs/data-service.md", "horovodrun ", "tests/frameworks/tensorflow/test_tensorflow_data_service.py"),
    ("docs/elastic.md", "horovodrun -np 8", "tests/cluster/jobs/test_elastic.py"),
    ("docs/elastic.md", "horovodrun ", "tests/processes/elastic/test_elastic.py"),
    ("docs/frameworks/caffe.md", "python -m horovod.caffe.tools", "tests/frameworks/caffe/test_caffe_data.py"),
    ("docs/frameworks/caffe.md", "caffe test", "tests/frameworks/caffe/test_caffe_commands.py"),
    ("docs/frameworks/caffe.md", "", "tests/cluster/jobs/test_caffe.py"),
    ("docs/guides/containers.md", "docker ", "tests/cluster/launchers/test_containers.py"),  # its steps, without Docker
    ("docs/guides/containers.md", "apptainer ", "not run: there is no Apptainer to test with, as the page says"),
    ("docs/guides/containers.md", "srun ", "not run: there is no Apptainer to test with, as the page says"),
    ("docs/guides/mpi.md", "mpirun ", "tests/cluster/launchers/test_mpirun.py"),
    ("docs/guides/slurm.md", "", "tests/cluster/launchers/test_slurm.py"),
    ("docs/guides/", "horovodrun ", "tests/cluster/launchers/test_guides.py"),
    ("docs/install.md", "horovodrun ", "tests/processes/launcher/test_launcher.py"),
    ("docs/launcher.md", "horovodrun -np 8 -H", "tests/cluster/jobs/test_jobs.py"),
    ("docs/launcher.md", "horovodrun python", "tests/cluster/launchers/test_inside_slurm.py"),
    ("docs/launcher.md", "horovodrun ", "tests/processes/launcher/test_launcher.py"),
    ("docs/launcher.md", "mpirun ", "tests/cluster/launchers/test_mpirun.py"),
    ("docs/launcher.md", "srun ", "tests/cluster/launchers/test_slurm.py"),
    ("docs/spark.md", "python ", "tests/schedulers/test_spark_local.py"),
    ("docs/spark-estimators.md", "python ", "tests/schedulers/test_spark_estimators.py"),
    ("docs/watch.md", "horovodrun ", "tests/processes/telemetry/test_watch.py"),
    ("docs/drill.md", "horovodrun ", "tests/cluster/jobs/test_drill.py"),
    ("docs/monitoring.md", "horovodrun ", "tests/processes/telemetry/test_metrics.py"),
    ("docs/profile.md", "horovodrun -np 2 --report", "tests/processes/telemetry/test_report.py"),
    ("docs/profile.md", "horovodrun ", "tests/processes/telemetry/test_timeline.py"),
    ("docs/profile.md", "python -m horovod.trace", "tests/unit/telemetry/test_trace.py"),
    ("docs/forecast.md", "horovodrun -np 2 -H", "tests/cluster/data/test_forecast.py"),
    ("docs/forecast.md", "horovodrun ", "tests/processes/telemetry/test_profile.py"),
    ("docs/forecast.md", "python -m horovod.simulate forecast", "tests/unit/simulate/test_forecast.py"),
    ("docs/scale.md", "python -m horovod.simulate run", "tests/unit/simulate/test_simulate_run.py"),
    ("docs/forecast.md", "python -m horovod.simulate published", "tests/unit/simulate/test_published.py"),
]


def where_it_runs(command: Command) -> str:
    """Empty: no row fits."""
    fitting = (at for page, begin, at in WHERE if command.page.startswith(page) and command.text.startswith(begin))
    return next(fitting, "")


def commands() -> list[Command]:
    return [Command(str(page.relative_to(ROOT)), text) for page in PAGES for text in _of(page)]


def _of(page: Path) -> list[str]:
    text = page.read_text()
    without_python = re.sub(r"^```python\n.*?^```\n", "\n", text, flags=re.MULTILINE | re.DOTALL)
    blocks = [found[1] for pattern in (_FENCED, _INDENTED) for found in pattern.finditer(without_python)]
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    bare = [re.sub(r"^(?:[A-Z_]+=\S+ )*", "", line) for line in lines]
    return [re.split(r"\s{2,}#| #", line)[0].strip() for line in bare if _is_command(line)]


def _is_command(line: str) -> bool:
    first = line.partition(" ")[0]
    return any(first == one or (one.endswith("/") and first.startswith(one)) for one in PROGRAMS)
