# SPDX-License-Identifier: Apache-2.0
"""The message of rank 0 to the others before they can connect: its rendezvous' address and the job's secret."""

from __future__ import annotations

import dataclasses
import json

from horovod.world.secret import SECRET_BYTES

__all__ = ["LONGEST_BYTES", "Offer"]

LONGEST_BYTES = 16384


@dataclasses.dataclass(frozen=True)
class Offer:
    """`addresses`: of rank 0's host, on its networks; the others find out which of them they reach."""

    size: int
    addresses: list[str]
    port: int
    secret: bytes = dataclasses.field(repr=False)

    def packed(self) -> bytes:
        fields = {"size": self.size, "addresses": self.addresses, "port": self.port, "secret": self.secret.hex()}
        return json.dumps(fields).encode()

    @classmethod
    def parse(cls, data: bytes) -> Offer | None:
        """The inverse of `packed`; None for anything else."""
        try:
            fields = json.loads(data)
            secret = bytes.fromhex(fields["secret"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        match fields:
            case {"size": int(size), "addresses": [*addresses], "port": int(port)}:
                fits = 0 < port < 1 << 16 and len(secret) >= SECRET_BYTES
                if fits and all(isinstance(one, str) for one in addresses):
                    return cls(size, addresses, port, secret)
        return None
