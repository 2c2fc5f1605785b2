# SPDX-License-Identifier: Apache-2.0
"""A Spark task that becomes a rank, and what the rank can know of its task."""

from horovod.spark.task.task_info import get_available_devices

__all__ = ["get_available_devices"]
