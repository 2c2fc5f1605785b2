# SPDX-License-Identifier: Apache-2.0
"""Old import names around the rendezvous of elastic jobs, which speaks no HTTP here (world/rendezvous_server.py)."""

from __future__ import annotations

from typing import Any, NoReturn

from horovod.runner.elastic.driver import driven_by_horovodrun

__all__ = ["GET_RANK_AND_SIZE", "PUT_WORKER_ADDRESSES", "create_rendezvous_handler"]

GET_RANK_AND_SIZE = "rank_and_size"
PUT_WORKER_ADDRESSES = "worker_addresses"


def create_rendezvous_handler(driver: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise driven_by_horovodrun("create_rendezvous_handler")
