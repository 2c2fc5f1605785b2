# SPDX-License-Identifier: Apache-2.0
"""Spark tasks that become ranks, and the devices of a rank's task."""

from horovod.core.missing import watch
from horovod.spark.task.task_info import get_available_devices

__all__ = ["get_available_devices"]

watch(__name__)
