# SPDX-License-Identifier: Apache-2.0
"""The devices that Spark gave a rank's task."""

from __future__ import annotations

from horovod.settings import Settings

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark gave the task of this rank; empty if Spark schedules no GPUs."""
    devices = Settings.from_environment().spark_devices
    return devices.split(",") if devices else []
