# SPDX-License-Identifier: Apache-2.0
"""Pairs of a key and a value for SparkConf.set(): which executors Spark uses again after a task has failed there.

Since Spark 3.1 the keys begin with spark.excludeOnFailure; Spark still takes those with spark.blacklist, Horovod's
names. `since_3_1` gives the new one.
"""

from __future__ import annotations

__all__ = [
    "SPARK_CONF_ALWAYS_RESTART_FAILED_TASK",
    "SPARK_CONF_BLACKLIST_DISABLED",
    "SPARK_CONF_BLACKLIST_ENABLED",
    "SPARK_CONF_DEFAULT_VALUES",
    "SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK",
    "SPARK_CONF_MAX_INT",
    "SPARK_CONF_MAX_INT_MINUS_ONE",
    "SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_REUSE_FAILING_NODE",
    "SPARK_CONF_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK",
    "since_3_1",
]

_BLACKLIST = "spark.blacklist."

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED = (f"{_BLACKLIST}enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = (f"{_BLACKLIST}enabled", "true")

# A task again on the executor, or the node, where it has failed.
_EXECUTOR, _NODE = f"{_BLACKLIST}task.maxTaskAttemptsPerExecutor", f"{_BLACKLIST}task.maxTaskAttemptsPerNode"
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_EXECUTOR, "1")
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_EXECUTOR, "2")
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_NODE, "1")
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_NODE, "2")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)

# Any task of the stage there.
_EXECUTOR, _NODE = f"{_BLACKLIST}stage.maxFailedTasksPerExecutor", f"{_BLACKLIST}stage.maxFailedExecutorsPerNode"
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILED_EXECUTOR = (_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_NODE, "1")
SPARK_CONF_REUSE_FAILING_NODE = (_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)

# Any task of the application there.
_EXECUTOR = f"{_BLACKLIST}application.maxFailedTasksPerExecutor"
_NODE = f"{_BLACKLIST}application.maxFailedExecutorsPerNode"
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_NODE, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_NODE, SPARK_CONF_MAX_INT)

SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    f"{_BLACKLIST}enabled": "false",
    f"{_BLACKLIST}stage.maxFailedTasksPerExecutor": "2",
    f"{_BLACKLIST}stage.maxFailedExecutorsPerNode": "2",
    f"{_BLACKLIST}task.maxTaskAttemptsPerExecutor": "1",
    f"{_BLACKLIST}task.maxTaskAttemptsPerNode": "2",
    f"{_BLACKLIST}application.maxFailedTasksPerExecutor": "2",
    f"{_BLACKLIST}application.maxFailedExecutorsPerNode": "2",
}


def since_3_1(pair: tuple[str, str]) -> tuple[str, str]:
    """The same pair with the key that Spark uses since 3.1."""
    key, value = pair
    return key.replace(_BLACKLIST, "spark.excludeOnFailure."), value
