# SPDX-License-Identifier: Apache-2.0
"""Networks between hosts: presets, each with the range that was measured or published of it, and files."""

from __future__ import annotations

import dataclasses
import os

from horovod.simulate.costs import STEP_S
from horovod.simulate.draws import Range, Ranges
from horovod.simulate.errors import InputError, number, pair, read_json, shown, unfit, waited_share, whole

__all__ = ["FASTER_GBIT", "FORMAT", "LIMITS", "PRESETS", "VERSION", "Link", "link_of"]

FORMAT = "horovod-link"
VERSION = 1
FASTER_GBIT = (1, 10, 25, 40, 100, 200, 400)
_LEAST_GBIT = 0.001
_MOST_HOSTS = 100_000
# The lowest and the highest value that a file may give. A percentage in place of a part is above the highest.
LIMITS: dict[str, Range] = {
    "utilisation": (1e-4, 1.0),
    "latency_us": (1e-3, 1e6),
    "overhead_us": (1e-3, 1e6),
    "interference": (0.0, 5.0),
}
_FIELDS = ("format", "version", "network", "gbit", "hosts", "core_wait", *LIMITS)


@dataclasses.dataclass(frozen=True)
class Link:
    """The network of a cluster.

    network: tcp or rdma. gbit: nominal rate of a host, in Gbit/s. utilisation: the part of it that an allreduce
    reaches, 0 to 1, lowest and highest. latency_us: of a step of an allreduce. overhead_us: processor time of a message
    at either end. interference: how much slower a CPU computes while data moves; 0.1: by a tenth. source: where the
    numbers are from. hosts: how many were measured; 1: none. core_wait: see errors.waited_share.
    """

    name: str
    network: str
    gbit: float
    utilisation: Range
    source: str
    latency_us: Range | None = None
    overhead_us: Range = (1.0, 6.0)
    hosts: int = 1
    interference: Range | None = None
    core_wait: float = 0.0

    @property
    def ranges(self) -> Ranges:
        """The ranges to draw from."""
        step_us = 1e6 * STEP_S[self.network]
        low, high = self.latency_us or (0.5 * step_us, 2 * step_us)
        return Ranges(
            utilisation=self.utilisation,
            latency=(low / step_us, high / step_us),
            overhead_s=(1e-6 * self.overhead_us[0], 1e-6 * self.overhead_us[1]),
        )

    @property
    def origin(self) -> str:
        """How its numbers came about, for readers."""
        if self.hosts > 1:
            return f"measured on {self.hosts} hosts"
        return f"from a {'table' if self.name in PRESETS else 'file'}, not measured"

    def faster(self) -> float | None:
        """The rate of the next faster network, in Gbit/s; None if there is none."""
        return next((float(rate) for rate in FASTER_GBIT if rate > self.gbit), None)


PRESETS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("1gbit-tcp", "tcp", 1, (0.8, 0.95), "benchmarks/records/hosts"),
        Link("10gbit-tcp", "tcp", 10, (0.3, 0.6), "horovod#659"),
        Link("25gbit-tcp", "tcp", 25, (0.45, 0.75), "Horovod's README, TCP on RoCE"),
        Link("25gbit-rdma", "rdma", 25, (0.8, 1.0), "Horovod's README, RoCE"),
        Link("25gbit-cloud", "tcp", 25, (0.2, 1.0), "horovod#396, horovod#779: p3.16xlarge"),
        Link("40gbit-tcp", "tcp", 40, (0.35, 0.6), "Horovod's README, second table"),
        Link("100gbit-rdma-shared", "rdma", 100, (0.15, 0.3), "DLPerf: one port for 8 GPUs"),
    )
}


def link_of(text: str) -> Link:
    """A preset by its name, or the link in a file. Raises InputError."""
    if text in PRESETS:
        return PRESETS[text]
    if not os.path.exists(text):
        raise InputError(f"--link {text}: there is no such file, nor such a link\nhint: links are {', '.join(PRESETS)}")
    content = read_json(text, FORMAT, VERSION, "a link file", f"write version {VERSION}")
    unknown = [name for name in content if name not in _FIELDS]
    if unknown:
        raise InputError(f"{text}: field {shown(unknown[0])}: not known, expected one of {', '.join(_FIELDS)}")
    network = content.get("network")
    if network not in ("tcp", "rdma"):
        raise unfit(text, "network", '"tcp" or "rdma"', network)
    ranges = {
        name: pair(content.get(name), name, text, least, most)
        for name, (least, most) in LIMITS.items()
        if name in content or name == "utilisation"
    }
    return Link(
        text,
        network,
        number(content.get("gbit"), "gbit", text, _LEAST_GBIT),
        source=text,
        hosts=whole(content.get("hosts", 1), "hosts", text, 1, _MOST_HOSTS),
        core_wait=waited_share(content, text),
        **ranges,
    )
