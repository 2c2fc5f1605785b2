# SPDX-License-Identifier: Apache-2.0
"""The parts of horovod.spark that need no JVM: slots, GPUs, the words of Spark, and what is refused at once."""

from __future__ import annotations

import io
import pickle
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import horovod.spark
from horovod.launcher.function.run_task import Answer
from horovod.launcher.job.supervision import Conclusion
from horovod.settings import changed_environment
from horovod.spark import assembly, job, runner
from horovod.spark.assembly import Assembly
from horovod.spark.common.backend import SparkBackend
from horovod.spark.connect import Session
from horovod.spark.gpus import GpusError, RankGpus, TaskGpus, assign
from horovod.spark.job import reason_in
from horovod.spark.slots import NoSlotsError, most_slots, wait_for_slots
from horovod.spark.task import get_available_devices, outcome


class Clock:
    """`slots` by the second in which they are there."""

    def __init__(self, **slots: int | None) -> None:
        self.now = 0.0
        self.slots = {int(at[1:]): count for at, count in slots.items()}
        self.told: list[int] = []

    def look(self) -> int | None:
        return self.slots[max(at for at in self.slots if at <= self.now)]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, needed: int, master: str, **conf: str) -> float:
        named = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
        wait_for_slots(needed, master, named, self.look, 600.0, self.told.append, lambda: self.now, self.sleep)
        return self.now


@pytest.mark.parametrize(
    "slots, needed, master, conf, waited_s",
    [
        ({"_0": 4}, 4, "yarn", {}, 0.0),
        ({"_0": None}, 4, "yarn", {}, 0.0),  # a Spark that does not tell
        ({"_0": 0, "_5": 4}, 4, "spark://a:7077", {}, 5.0),
        ({"_0": 1, "_5": 2}, 2, "local-cluster[2,1,1024]", {}, 5.0),
        ({"_0": 2, "_9": 8}, 8, "yarn", {"executor_instances": "4", "executor_cores": "2"}, 9.0),
        ({"_0": 0}, 4, "spark://a:7077", {}, 600.0),
        ({"_0": 1}, 4, "yarn", {"dynamicAllocation_enabled": "true"}, 0.0),
    ],
)
def test_slots_that_may_come_are_waited_for(
    slots: dict[str, int | None], needed: int, master: str, conf: dict[str, str], waited_s: float
) -> None:
    clock = Clock(**slots)
    assert clock.wait(needed, master, **conf) == pytest.approx(waited_s, abs=0.3)
    assert len(clock.told) == int(waited_s // 10) or waited_s == 600.0


@pytest.mark.parametrize(
    "slots, master, conf, within_s",
    [
        ({"_0": 2}, "local[2]", {}, 0.0),
        ({"_0": 2}, "local-cluster[2,1,1024]", {}, 2.3),
        ({"_0": 4}, "spark://a:7077", {"task_cpus": "1"}, 2.3),
        ({"_0": 4}, "yarn", {"executor_instances": "2", "executor_cores": "2"}, 2.3),
    ],
)
def test_too_few_slots_are_told_at_once(
    slots: dict[str, int | None], master: str, conf: dict[str, str], within_s: float
) -> None:
    clock = Clock(**slots)
    with pytest.raises(NoSlotsError) as caught:
        clock.wait(8, master, **conf)
    assert clock.now <= within_s
    made_of = ", ".join([master, *(f"spark.{name.replace('_', '.')} {value}" for name, value in conf.items())])
    assert f"needs 8 tasks at the same time, but Spark has {slots['_0']} slots ({made_of})\nhint: " in str(caught.value)


def test_the_most_slots_follow_from_the_configuration() -> None:
    assert most_slots("local-cluster[3, 4, 1024]", {"spark.task.cpus": "2"}) == 6
    assert most_slots("k8s://x", {"spark.executor.instances": "3", "spark.executor.cores": "5"}) == 15
    assert most_slots("spark://a:7077", {}) is None


A0, A1, B0 = TaskGpus("a", ("0",)), TaskGpus("a", ("1",)), TaskGpus("b", ("0",))


@pytest.mark.parametrize(
    "tasks, expected",
    [
        ([TaskGpus("a"), TaskGpus("a")], [RankGpus(None, ()), RankGpus(None, ())]),
        ([A1, A0, B0], [RankGpus("1,0", ("1",)), RankGpus("1,0", ("0",)), RankGpus("0", ("0",))]),
        ([TaskGpus("a", ("0", "1")), TaskGpus("a", ("2", "3"))], [
            RankGpus("0,1,2,3", ("0", "1")), RankGpus("0,1,2,3", ("2", "3"))]),
        # The platform's variable is longer: addresses are positions in it.
        ([TaskGpus("a", ("0",), "4,6"), TaskGpus("a", ("1",), "4,6")],
         [RankGpus("4,6", ("0",)), RankGpus("4,6", ("1",))]),
        # It is the task's own: it stays, and the rank's GPU is its first.
        ([TaskGpus("a", ("3",), "3"), TaskGpus("a", ("5",), "5")], [RankGpus(None, ("0",)), RankGpus(None, ("0",))]),
        ([TaskGpus("a", ("7",), "4,6")], [RankGpus(None, ("0",))]),
        ([TaskGpus("a", (), "4,6")], [RankGpus(None, ())]),
    ],
)  # fmt: skip
def test_each_rank_sees_the_gpus_of_its_hosts_tasks(tasks: list[TaskGpus], expected: list[RankGpus]) -> None:
    assert assign(tasks) == expected
    assert [one.visible for one in assign(tasks, by_local_rank=True)] == [None] * len(tasks)


@pytest.mark.parametrize(
    "tasks, what",
    [
        ([A0, A0, B0], "a GPU of host a was given to two tasks\n  rank 0: 0\n  rank 1: 0\nhint: "),
        ([B0, A0, TaskGpus("a")], "host a has 2 ranks, but 1 GPU\n  rank 1: 0\n  rank 2: no GPU\nhint: "),
        ([TaskGpus("a", ("0",), "4,6"), TaskGpus("a", ("0",), "4,6")], "a GPU of host a was given to two tasks"),
    ],
)
def test_gpus_that_cannot_be_divided_are_told_before_training(tasks: list[TaskGpus], what: str) -> None:
    with pytest.raises(GpusError) as caught:
        assign(tasks)
    assert what in str(caught.value)
    assert len(assign(tasks, by_local_rank=True)) == len(tasks)


def test_a_rank_knows_the_devices_of_its_task() -> None:
    assert get_available_devices() == []
    with changed_environment(HOROVOD_SPARK_DEVICES="2,3"):
        assert get_available_devices() == ["2", "3"]


JVM = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: org.apache.spark."
FAILED = JVM + "SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. "
STAGE = (
    FAILED + "Most recent failure reason: Stage failed because barrier task ResultTask(6, 1) finished unsuccessfully.\n"
)
PYTHON = JVM + "api.python.PythonException: Traceback (most recent call last):\n  File 'worker.py', line 1, in main\n"
TRACE = "\n\tat org.apache.spark.rdd.RDD.collect(RDD.scala:1122)\n\tat java.base/java.lang.Thread.run(Thread.java:840)"
LACKS = "the Python of host b lacks hvd: /usr/bin/python3 (Python 3.11.2): No module\nhint: install hvd there"


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            JVM + "SparkException: [SPARK_JOB_CANCELLED] Job 5 cancelled as part of all jobs SQLSTATE: XXKDA" + TRACE,
            "Spark job has failed: Job 5 cancelled as part of all jobs",
        ),
        (
            STAGE + "ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Reason: Command exited "
            "with code 137" + TRACE,
            "Spark job has failed: executor 0 was lost: Command exited with code 137",
        ),
        (STAGE + "TaskKilled (by the user)" + TRACE, "Spark job has failed: Spark ended a task: by the user"),
        (PYTHON + f"RuntimeError: horovod.spark.run: {LACKS}\n" + TRACE, LACKS),
        (
            PYTHON + "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 and 3.11\n" + TRACE,
            "Spark job has failed: pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 and 3.11",
        ),
        (
            "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008\n",
            "Spark job has failed: Operation has been canceled.",
        ),
        ("Answer from Java side is empty", "Spark job has failed: Answer from Java side is empty"),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "a.py", line 1, in b\nValueError: of a function of the DataFrame',
            "Spark job has failed: ValueError: of a function of the DataFrame",
        ),
        (
            "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
            '  File "a.py", line 1, in b\nOSError: [Errno 28] No space left on device\n SQLSTATE: 38000\n\tat org.a',
            "Spark job has failed: OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_the_reason_of_a_failed_spark_job_is_found_among_its_traces(text: str, reason: str) -> None:
    assert reason_in(text) == reason


class Context:
    """What a job asks of a SparkContext before it starts."""

    master, defaultParallelism = "yarn", 2

    def getConf(self) -> Context:
        return self

    def getAll(self) -> list[tuple[str, str]]:
        return []


def session(_: str) -> Session:
    return Session(Context())


def test_the_number_of_processes_is_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "active_session", session)
    runner._Job("horovod.spark.run", None, None, 1, None, said := io.StringIO())
    assert said.getvalue() == "horovod.spark: 2 processes, inferred from spark.default.parallelism\n"


def test_tasks_of_another_version_are_told_in_one_report() -> None:
    tasks = Assembly("horovod.spark.run", 2, print)
    one = {"event": "refused", "version": "0.1", "python": "/usr/bin/python3 (Python 3.11.2)"}
    tasks._on_event({**one, "index": 0, "hostname": "a"}, None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as caught:
        tasks._on_event({**one, "index": 1, "hostname": "b"}, None)  # type: ignore[arg-type]
    assert str(caught.value).splitlines()[:3] == [
        f"horovod.spark.run: the driver has hvd {horovod.__version__}, but 2 of 2 tasks have another version",
        "  host a has hvd 0.1 in /usr/bin/python3 (Python 3.11.2)",
        "  host b has hvd 0.1 in /usr/bin/python3 (Python 3.11.2)",
    ]
    assert tasks._progress(12.0, 600.0) == (
        "0 of 2 tasks are ready after 12 s; the job fails if the others are not in 588 s (start_timeout)"
    )
    tasks._here = {index: {"hostname": name} for index, name in enumerate("aba")}
    assert tasks._progress(12.0, 600.0).startswith("3 of 2 tasks are ready after 12 s (hosts a:2 b:1); the job fails")
    assert "3 of 2 tasks came within 5 s: task 0 on a, task 1 on b, task 2 on a\nhint: " in tasks._late(5.0)


def test_only_the_ranks_of_the_executor_that_was_lost_first_end_with_it() -> None:
    """Spark ends the other tasks of the stage, whose agents are lost, too."""
    tasks = Assembly("horovod.spark.run", 4, print)
    tasks._names = [f"task {rank}" for rank in range(4)]
    tasks._order = [{"hostname": "b", "executor": executor} for executor in (5, 7, 7, 5)]
    spark = SimpleNamespace(why=lambda: "Spark job has failed: executor 3 was lost: 137")
    end = Conclusion("the words of the job", lost=("task 2", "task 0", "task 1", "task 3"))
    assert str(tasks._failed(spark, end)).splitlines() == [  # type: ignore[arg-type]
        "horovod.spark.run: Spark job has failed: executor 3 was lost: 137; ranks 1, 2 on b ended with it",
        "the words of the job",
    ]


def test_the_ranks_of_a_host_are_neighbours_and_that_of_task_0_comes_first() -> None:
    tasks = [
        {"index": index, "hostname": name, "machine": "m"} for index, name in ((3, "b"), (0, "c"), (2, "c"), (1, "b"))
    ]
    assert [task["index"] for task in assembly._by_host(tasks)] == [0, 2, 1, 3]


def test_an_open_network_is_warned_of_unless_spark_protects_it() -> None:
    closed = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner._warn_of_open_network("local-cluster[2,1,1024]", {})
        runner._warn_of_open_network("yarn", closed)
    for conf in ({}, {"spark.authenticate": "true"}, {"spark.network.crypto.enabled": "true"}):
        with pytest.warns(UserWarning, match="secret reaches the executors by Spark's network, which is open\nhint: "):
            runner._warn_of_open_network("yarn", conf)


def nothing() -> None: ...


@pytest.mark.parametrize(
    "arguments, kind, text",
    [
        ({"use_mpi": True}, NotImplementedError, "use_mpi is not supported: .*\nhint: "),
        ({"num_proc": 0}, ValueError, "num_proc is 0, expected at least 1"),
        ({"nics": ["nowhere0"]}, ValueError, "no network interface 'nowhere0'"),
        ({"args": (threading.Lock(),)}, TypeError, "spark.run: args cannot be pickled: .*lock.* \\(in item 0\\)"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"(?s){text}"):
        horovod.spark.run(nothing, **arguments)


@pytest.mark.parametrize("least, size, most", [(3, 2, 2), (1, 2, 1), (1, 0, 2)])
def test_numbers_of_an_elastic_job_that_do_not_fit(
    least: int, size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "active_session", session)
    with pytest.raises(ValueError, match="horovod.spark.run_elastic: (min_num_proc|num_proc) is ."):
        horovod.spark.run_elastic(nothing, num_proc=size, min_num_proc=least, max_num_proc=most)
    with pytest.raises(ValueError), pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc"):
        horovod.spark.run_elastic(nothing, num_proc=size, min_np=least, max_num_proc=most)


def test_an_estimators_ranks_get_the_drivers_variables_but_for_those_of_its_machine() -> None:
    own = {"PATH": "/driver", "HOME": "/home/driver", "CUDA_VISIBLE_DEVICES": "3", "SPARK_HOME": "/spark"}
    with changed_environment(**own, PYTHONPATH="/driver", NCCL_DEBUG="INFO", AWS_REGION="eu"):
        environment = SparkBackend(2)._env
    assert not {*own, "PYTHONPATH"} & set(environment)
    assert (environment["NCCL_DEBUG"], environment["AWS_REGION"]) == ("INFO", "eu")
    assert SparkBackend(2, {"PATH": "/given"})._env == {"PATH": "/given"}


def test_what_task_0_brings_is_what_the_driver_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output keeps its order and its end, answers travel in pieces, and an error is raised as it is."""
    monkeypatch.setattr(outcome, "_PIECE_BYTES", 8)
    output = outcome.Output(40, log := io.StringIO())
    for count, stream in enumerate(("stdout", "stderr", "stdout", "stderr")):
        output.stream(stream).write(f"{count} of the lines\n")
    data = [pickle.dumps(Answer(rank, value=[rank] * 9)) for rank in (0, 1)]
    end = outcome.rows_of_end(data, 0, Conclusion(), ["a", "b"])
    came = outcome.Came([*output.rows(), *end])
    lost = "horovod.spark: 30 bytes of output came before this; the log of task 0 has them\n"
    assert came.output == [("stderr", lost), ("stdout", "2 of the lines\n"), ("stderr", "3 of the lines\n")]
    assert log.getvalue().startswith("0 of the lines\n1 of")
    assert came.results("f", 2) == [[0] * 9, [1] * 9]
    failed = pickle.dumps(Answer(1, error=KeyError("x"), traceback="a trace"))
    with pytest.raises(KeyError) as caught:
        outcome.Came(outcome.rows_of_end([data[0], failed], 1, Conclusion("why"), ["a", "b"])).results("f", 2)
    assert "rank 1 on host b:\na trace" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="no result from rank 0, 1\nwhy"):
        outcome.Came(outcome.rows_of_end([b"", b""], 1, Conclusion("why"), ["a", "b"])).results("f", 2)
    wrapped = pickle.dumps(Answer(0, error=OSError("a framework's words for the loss"), ended=True))
    with pytest.raises(RuntimeError, match="no result from rank 1\nwhy"):
        outcome.Came(outcome.rows_of_end([wrapped, b""], 1, Conclusion("why"), ["a", "b"])).results("f", 2)
    with pytest.raises(TimeoutError, match="late"):
        outcome.Came(outcome.rows_of_error(TimeoutError("late"))).results("f", 2)


def test_a_task_of_another_version_says_so_before_it_supervises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "__version__", "0.0.1")
    task = job.supervised_task_of({})
    with pytest.raises(
        RuntimeError, match="the driver has hvd 0.0.1, but host .* has hvd .* in .*\nhint: install hvd 0"
    ):
        task(0, None)


def test_a_job_supervised_in_task_0_needs_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    own = session("")
    monkeypatch.setattr(runner, "active_session", lambda _: own)
    with changed_environment(HOROVOD_SPARK_SUPERVISOR="task"):
        with pytest.raises(
            ValueError, match="an elastic job outlives its tasks\nhint: HOROVOD_SPARK_SUPERVISOR=driver"
        ):
            horovod.spark.run_elastic(nothing, num_proc=2)
        own.conf["spark.dynamicAllocation.enabled"] = "true"
        with pytest.raises(ValueError, match="needs a barrier stage.*\nhint: HOROVOD_SPARK_SUPERVISOR=driver, or no"):
            horovod.spark.run(nothing, num_proc=2)


def test_horovod_runner_knows_two_levels_of_output() -> None:
    with pytest.raises(ValueError, match="driver_log_verbosity='none': expected all or log_callback_only"):
        horovod.spark.HorovodRunner(2, "none")


def test_the_names_of_conf_are_pairs_for_both_names_of_spark() -> None:
    conf = horovod.spark.conf
    pairs = [getattr(conf, name) for name in conf.__all__ if isinstance(getattr(conf, name), tuple)]
    assert len(pairs) == 17 and all(isinstance(part, str) for pair in pairs for part in pair)
    assert conf.since_3_1(conf.SPARK_CONF_BLACKLIST_ENABLED) == ("spark.excludeOnFailure.enabled", "true")
    assert conf.since_3_1(conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK)[0] == "spark.task.maxFailures"
