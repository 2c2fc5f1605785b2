# SPDX-License-Identifier: Apache-2.0
"""Every setting, once: environment variable, flag, YAML key and keyword are spellings of one row.

Imports nothing of ours but kinds.py, which says what a row is and how its value is read, and parts of the table:
elastic.py, ending.py, gpus.py, metrics.py, platforms.py and training.py.

This is the only file that reads the process' environment, or writes it: change_environment does, for
horovod.common.util.env, which scripts call, and for ranks that Ray starts. Nothing else in this project does. The
native core gets its part as strings (`native_settings`) and reads no environment itself. A row is here only if
something reads it today, or to say that it has no effect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from horovod.settings import kinds
from horovod.settings.elastic import ElasticSettings
from horovod.settings.ending import EndSettings
from horovod.settings.gpus import GpuSettings
from horovod.settings.kinds import Row, SettingError, milliseconds, parse_flag, parsed, setting, spelled
from horovod.settings.metrics import MetricsSettings
from horovod.settings.platforms import PlatformSettings
from horovod.settings.training import TrainingSettings

__all__ = [
    "Row",
    "SettingError",
    "Settings",
    "change_environment",
    "changed_environment",
    "current_environment",
    "environment_of",
    "job_directory",
    "parse_flag",
    "rows",
]

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
INSTRUCTION_SETS = ("best", "avx512", "avx2", "plain")
# Prefixes of the variables of mpirun, srun and torchrun.
_OF_LAUNCHERS = "OMPI_ PMI_ PMIX_ MPI_LOCAL I_MPI_HYDRA_ SLURM_ TORCHELASTIC_ MASTER_ RANK WORLD_SIZE LOCAL_WORLD_SIZE"
_OF_LAUNCHERS += " HOROVOD_SIZE"  # of a launcher that Horovod does not know


@dataclasses.dataclass(frozen=True)
class Settings(GpuSettings, EndSettings, PlatformSettings, ElasticSettings, TrainingSettings, MetricsSettings):
    """The values of one process. Build it with `from_environment`, or by keyword in tests."""

    # Tuning
    fusion_threshold_bytes: int = setting(
        "HOROVOD_FUSION_THRESHOLD",
        kinds.integer(0),
        128 << 20,
        "Fuse tensors up to this size, in bytes (the flag: in MB); 0 turns fusion off.",
        flag="--fusion-threshold-mb",
        yaml="params.fusion_threshold_mb",
        flag_unit=1 << 20,
    )
    cycle_time_ms: float = setting(
        "HOROVOD_CYCLE_TIME",
        kinds.number(0),
        1.0,
        "How long a tensor of an asynchronous call may wait to be fused with others, in milliseconds.",
        flag="--cycle-time-ms",
        yaml="params.cycle_time_ms",
    )
    groups_apart: bool = setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        kinds.switch(),
        False,
        "Tensors of a grouped call are fused with each other only.",
    )
    thread_affinity: tuple[int, ...] = setting(
        "HOROVOD_THREAD_AFFINITY",
        kinds.cores(),
        (),
        "The core of each local rank's engine thread, for example 0,8,16. If a thread waits for an operation, that "
        "thread runs it; the setting does not move that thread.",
        flag="--thread-affinity",
        yaml="library_options.thread_affinity",
    )
    helper_threads: int | None = setting(
        "HOROVOD_HELPER_THREADS",
        kinds.integer(0, 256),
        None,
        "Threads that help each rank to copy and add large tensors in shared memory while a thread of the rank waits. "
        "Without it, one fewer than the cores a rank may use (or OMP_NUM_THREADS, if that is less), 7 at most.",
    )
    cached_names: int = setting(
        "HOROVOD_CACHE_CAPACITY",
        kinds.integer(0),
        7680,
        "How many tensor names the ranks remember, 7680 at most, and fewer if they are of groups of many tensors. A "
        "tensor with another name takes a slower way over rank 0.",
        flag="--cache-capacity",
        yaml="params.cache_capacity",
    )
    transport: str = setting(
        "HOROVOD_TRANSPORT",
        kinds.word(),
        "auto",
        "How data travels. auto: shared memory inside a host, TCP between hosts. shm, tcp, hierarchical (both), mpi, "
        "hierarchical-mpi: that one, or an error. horovodrun --check-build lists them.",
        flag="--transport",
        yaml="params.transport",
    )
    pretend_hosts: tuple[int, ...] = setting(
        "HOROVOD_PRETEND_HOSTS",
        kinds.counts(),
        (),
        "2,2 divides the ranks of one machine into two hosts of two ranks each, which share no memory with each other. "
        "For tests.",
    )
    relays_above_hosts: int = setting(
        "HOROVOD_RELAYS_ABOVE_HOSTS",
        kinds.integer(0),
        256,
        "With more hosts than this, their leaders speak with rank 0 by way of relays, one for each group of hosts.",
    )
    instruction_set: str = setting(
        "HOROVOD_INSTRUCTION_SET",
        kinds.choice(*INSTRUCTION_SETS),
        "best",
        "Instruction set of the reduction kernels; all give the same bits. For tests.",
    )
    host_group_size: int = setting(
        "HOROVOD_HOST_GROUP_SIZE",
        kinds.integer(0, 2**31 - 1),
        0,
        "Least hosts of a group: groups reduce first, then what they have. 0: by the number of hosts. It changes bits. "
        "For tests.",
    )

    dynamic_process_sets: bool = setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        kinds.switch(),
        False,
        "Allows add_process_set and remove_process_set after init; init(process_sets='dynamic') does so too.",
    )

    # Failures
    stall_check_disable: bool = setting(
        "HOROVOD_STALL_CHECK_DISABLE",
        kinds.switch(),
        False,
        "Turn off the report of operations that some ranks wait for and others have not called.",
        flag="--no-stall-check",
        yaml="not stall_check.enabled",
    )
    stall_warning_s: float = setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        kinds.number(0),
        60.0,
        "How long an operation waits for missing ranks, or for a GPU, before it is reported, in seconds; 0 turns the "
        "report off. Ranks that wait for each other for ever are reported after 10 s at most, and get an error.",
        flag="--stall-check-warning-time-seconds",
        yaml="stall_check.warning_time_seconds",
    )
    stall_shutdown_s: float = setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        kinds.number(0),
        0.0,
        "How long an operation waits for missing ranks before the job is ended, in seconds; 0 means for ever.",
        flag="--stall-check-shutdown-time-seconds",
        yaml="stall_check.shutdown_time_seconds",
    )
    start_timeout_s: float = setting(
        "HOROVOD_START_TIMEOUT",
        kinds.number(0.1),
        30.0,
        "How long the ranks wait for each other in init, and later when NCCL starts, in seconds.",
        flag="--start-timeout",
    )
    frozen_timeout_s: float = setting(
        "HOROVOD_FROZEN_TIMEOUT_SECONDS",
        kinds.number(0),
        3.0,
        "Seconds of silence after which the other ranks of a host treat a process as frozen; ten times as long if it "
        "only waits for a core. Give 1 or more: a sign of life comes every half second. 0: never, and then ranks of "
        "other hosts wait for it, too, while its host answers.",
    )
    lost_timeout_s: float = setting(
        "HOROVOD_LOST_TIMEOUT_SECONDS",
        kinds.number(0),
        5.0,
        "How long a rank of another host, or horovodrun's agent of a host, may give no sign of life before it counts "
        "as lost, in seconds; 0 means for ever. With HOROVOD_FROZEN_TIMEOUT_SECONDS=0, a silent rank does not count as "
        "lost while its host answers.",
    )
    fault_point: str = setting(
        "HOROVOD_FAULT_POINT",
        kinds.text(),
        "",
        "POINT[@N]:kill, :stop, :exitN or :pauseN (milliseconds) ends, stops or holds up this process at its Nth pass "
        "through a named moment, counted from its first init on. For tests.",
    )
    log_level: str = setting(
        "HOROVOD_LOG_LEVEL",
        kinds.choice(*LOG_LEVELS),
        "warning",
        "The least severe message that is written.",
        flag="--log-level",
        yaml="logging.level",
        choices=LOG_LEVELS,
    )

    log_hide_time: bool = setting(
        "HOROVOD_LOG_HIDE_TIME",
        kinds.switch(),
        True,
        "Write no local time in warnings (the default). HOROVOD_LOG_HIDE_TIME=0 or --log-with-timestamp writes it.",
        flag="--log-hide-timestamp",
        yaml="not logging.with_timestamp",
    )
    log_timestamp: bool = setting("HOROVOD_LOG_TIMESTAMP", kinds.switch(), False, "Alias for HOROVOD_LOG_HIDE_TIME=0.")
    timeline: str = setting(
        "HOROVOD_TIMELINE",
        kinds.text(),
        "",
        "File into which all ranks write what happens to each tensor; Chrome's and Perfetto's viewers show it. "
        "DYNAMIC: no file until start_timeline is called, which works without this setting, too.",
        flag="--timeline-filename",
        yaml="timeline.filename",
    )
    timeline_mark_cycles: bool = setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        kinds.switch(),
        False,
        "Mark each batch in the timeline as well.",
        flag="--timeline-mark-cycles",
        yaml="timeline.mark_cycles",
    )
    profile: str = setting(
        "HOROVOD_PROFILE",
        kinds.text(),
        "",
        "File into which rank 0 writes when backward has each gradient ready, for python -m horovod.simulate forecast. "
        "The ranks do not reduce gradients meanwhile, each trains apart: do not keep what such a job has trained.",
        flag="--profile",
    )
    report: str = setting(
        "HOROVOD_REPORT",
        kinds.text(),
        "",
        "Folder into which each rank writes its part of a report, on its own host: timeline, counters, versions. "
        "horovodrun --report sets it.",
    )

    # Identity: set by the launcher, read by every rank
    rank: int | None = setting("HOROVOD_RANK", kinds.integer(0), None, "The rank of this process.")
    size: int | None = setting("HOROVOD_SIZE", kinds.integer(1), None, "Number of ranks in the job.")
    local_rank: int | None = setting(
        "HOROVOD_LOCAL_RANK", kinds.integer(0), None, "This process's rank among the ranks on its host."
    )
    local_size: int | None = setting("HOROVOD_LOCAL_SIZE", kinds.integer(1), None, "Number of ranks on this host.")
    cross_rank: int | None = setting(
        "HOROVOD_CROSS_RANK", kinds.integer(0), None, "Index of this host among the hosts that have this local rank."
    )
    cross_size: int | None = setting(
        "HOROVOD_CROSS_SIZE", kinds.integer(1), None, "Number of hosts that have this local rank."
    )
    hostname: str = setting("HOROVOD_HOSTNAME", kinds.text(), "", "The name of this host in the launcher's list.")
    rendezvous_address: str = setting(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        kinds.text(),
        "",
        "Address of the rendezvous, at which the ranks find each other.",
    )
    rendezvous_port: int | None = setting("HOROVOD_GLOO_RENDEZVOUS_PORT", kinds.port(), None, "Port of the rendezvous.")
    network_interface: str = setting(
        "HOROVOD_GLOO_IFACE",
        kinds.text(),
        "",
        "Network interface (a,b: the first that a host has) between ranks; default: what leads to the rendezvous.",
        flag="--network-interface",
    )
    controller: str = setting(
        "HOROVOD_CONTROLLER",
        kinds.text(),
        "gloo",
        "mpi: the ranks find each other by MPI, or init fails. gloo: Horovod chooses the way by how they were started.",
    )
    cpu_operations: str = setting(
        "HOROVOD_CPU_OPERATIONS",
        kinds.text(),
        "",
        "What moves data between hosts if HOROVOD_TRANSPORT says nothing: gloo or tcp, our own transports, or mpi.",
    )
    secret_file: str = setting(
        "HOROVOD_SECRET_FILE", kinds.text(), "", "File with the job's secret; only its owner may be able to read it."
    )

    rendezvous_directory: str = setting(
        "HOROVOD_RENDEZVOUS_DIRECTORY",
        kinds.text(),
        "",
        "Shared folder in which ranks of mpirun, srun or torchrun find each other; default: mpi4py, or ~/.horovod.",
    )
    job_directory: str = setting(
        "HOROVOD_JOB_DIRECTORY",
        kinds.text(),
        "",
        "Folder for the temporary files of multiprocessing; it is removed when the job ends.",
    )

    # The variables of other launchers, for world/launchers
    launch_environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings that `environment`, by default this process', spells. Raises SettingError."""
        if environment is None:
            environment = os.environ
        values: dict[str, Any] = {}
        for row in rows():
            text = environment.get(row.variable)
            if text is not None and (text.strip() or row.parse is str):
                values[row.keyword] = parsed(row, text)
        starts = tuple(_OF_LAUNCHERS.split())
        return cls(**values, launch_environment={n: v for n, v in environment.items() if n.startswith(starts)})

    def native_settings(self) -> list[tuple[str, str]]:
        """The settings of the native core, as strings. Equal names in native code; an unknown one is an error there."""
        warning_s = 0.0 if self.stall_check_disable else self.stall_warning_s
        shutdown_s = 0.0 if self.stall_check_disable else self.stall_shutdown_s
        return [
            ("fusion_threshold_bytes", str(self.fusion_threshold_bytes)),
            ("cycle_time_ms", str(self.cycle_time_ms)),
            ("cached_names", str(self.cached_names)),
            ("relays_above_hosts", str(self.relays_above_hosts)),
            ("groups_apart", spelled(self.groups_apart)),
            *([("engine_cpu", str(core))] if (core := self._core()) is not None else []),
            *([("helper_threads", str(self.helper_threads))] if self.helper_threads is not None else []),
            ("omp_threads", _omp_threads()),
            ("stall_warning_ms", str(milliseconds(warning_s))),
            ("stall_shutdown_ms", str(milliseconds(shutdown_s))),
            ("start_timeout_ms", str(milliseconds(self.start_timeout_s))),
            ("frozen_timeout_ms", str(milliseconds(self.frozen_timeout_s))),
            ("lost_timeout_ms", str(milliseconds(self.lost_timeout_s))),
            ("fault_point", self.fault_point),
            *self._native_gpu_settings(),
            ("transport", self.communicator),
            ("instruction_set", self.instruction_set),
            ("host_group_size", str(self.host_group_size)),
            ("log_level", self.log_level),
            ("log_time", spelled(self.log_time)),
        ]

    def _log_start(self) -> str:
        return f"{datetime.datetime.now():[%Y-%m-%d %H:%M:%S.%f] }" if self.log_time else ""

    @property
    def log_time(self) -> bool:
        """True if warnings carry the time."""
        return self.log_timestamp or not self.log_hide_time

    def _core(self) -> int | None:
        local_rank = self.local_rank or 0
        if local_rank < len(self.thread_affinity):
            return self.thread_affinity[local_rank]
        if self.thread_affinity and self.log_level not in ("error", "fatal"):
            print(
                f"{self._log_start()}horovod: warning: HOROVOD_THREAD_AFFINITY={spelled(self.thread_affinity)} has no "
                f"core for local rank {local_rank}, whose engine's thread may run anywhere",
                file=sys.stderr,
            )
        return None

    @property
    def communicator(self) -> str:
        """The communicator that carries data: a name of the native registry, or auto."""
        by_mpi = self.transport == "auto" and self.cpu_operations.strip().lower() == "mpi"
        return "hierarchical-mpi" if by_mpi else self.transport

    def unsupported(self) -> str | None:
        """A setting that asks for an unsupported part: two lines for an error, or None."""
        for value, variable in (
            (self.controller, "HOROVOD_CONTROLLER"),
            (self.cpu_operations, "HOROVOD_CPU_OPERATIONS"),
        ):
            if value.strip().lower() not in ("", "gloo", "tcp", "mpi"):
                return f"{variable}={value!r} is not supported\nhint: unset it, or set tcp (our own transports) or mpi"
        return None


def _omp_threads() -> str:
    """OMP_NUM_THREADS, of the outermost level if it has several; 0 if it is not a number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return first if first.isdecimal() else "0"


def rows() -> tuple[Row, ...]:
    """The registry, in the order in which it is documented."""
    return tuple(
        Row(keyword=field.name, **field.metadata["row"]) for field in dataclasses.fields(Settings) if field.metadata
    )


def environment_of(**values: object) -> dict[str, str]:
    """The environment variables that spell these keywords; the inverse of `from_environment`."""
    variable = {row.keyword: row.variable for row in rows()}
    return {variable[keyword]: spelled(value) for keyword, value in values.items() if value is not None}


def job_directory() -> str:
    """The job's folder for temporary files, empty without a launcher. For a look before any setting is checked."""
    return os.environ.get(next(row.variable for row in rows() if row.keyword == "job_directory"), "")


def current_environment() -> dict[str, str]:
    """A copy of this process' environment, for the processes that a launcher starts."""
    return dict(os.environ)


@contextlib.contextmanager
def changed_environment(**kwargs: str | None) -> Iterator[None]:
    """A block in which these environment variables are set, or not set if None is given: horovod.common.util.env."""
    before = {name: os.environ.get(name) for name in kwargs}
    try:
        change_environment(kwargs)
        yield
    finally:
        change_environment(before)


def change_environment(values: Mapping[str, str | None]) -> None:
    """Sets these environment variables of this process, or removes those that are None."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
