# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m horovod.simulate`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from horovod.core.wording import counted, tell
from horovod.simulate import published, report, run
from horovod.simulate.arguments import check_file_name, count, gbit, number
from horovod.simulate.costs import INSIDE_BYTES_PER_S
from horovod.simulate.errors import InputError
from horovod.simulate.forecast import Job, forecast
from horovod.simulate.links import PRESETS, link_of
from horovod.simulate.models import MODELS
from horovod.simulate.page import page
from horovod.simulate.profile import Profile, read_profile
from horovod.simulate.step import of_model
from horovod.world.files.whole import check_writable, write_whole

__all__ = ["main", "parser"]

_HOSTS = (1, 2, 4, 8, 16, 32, 64)
_MOST_BYTES = 1 << 40


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m horovod.simulate", description="How far a job scales, without the hosts."
    )
    commands = top.add_subparsers(dest="command", required=True)
    add = commands.add_parser("forecast", help="efficiency on more hosts, its band, what limits it and what would help")
    add.add_argument("profile", nargs="?", metavar="PROFILE", help="what horovodrun --profile has written")
    add.add_argument("--model", choices=sorted(MODELS), help="in place of a profile: a table of its layers")
    add.add_argument("--step-ms", type=_step_ms, metavar="MS", help="with --model: a step on one rank, in milliseconds")
    add.add_argument(
        "--link", required=True, metavar="LINK", help=f"the network between hosts: {', '.join(PRESETS)}, or a file"
    )
    add.add_argument("--hosts", type=_counts, default=_HOSTS, metavar="N,N", help="numbers of hosts, ascending")
    add.add_argument("--ranks-a-host", type=count, metavar="N", help="ranks of a host (those of the profile, or 1)")
    add.add_argument("--device", choices=("cpu", "gpu"), help="where the model computes; the profile's, or gpu")
    add.add_argument(
        "--inside", choices=sorted(INSIDE_BYTES_PER_S), help="what joins a host's ranks (memory on CPUs, pcie on GPUs)"
    )
    add.add_argument("--batch", type=count, metavar="N", help="samples of a rank's step, for samples/s")
    add.add_argument(
        "--calibrate",
        type=_measured,
        action="extend",
        default=[],
        metavar="HOSTS:PERCENT,...",
        help="efficiencies that were measured on this cluster, such as 1:97.5,2:91",
    )
    add.add_argument("--html", metavar="FILE", help="write a page with pictures, which needs no other file")
    show = commands.add_parser("published", help="the model beside published results: all errors, the bad ones too")
    _add_run(commands.add_parser("run", help="a whole job in one process and in virtual time, with faults"))
    for command in (add, show):
        command.add_argument("--json", action="store_true", help="write JSON to standard output")
    return top


def _add_run(add: argparse.ArgumentParser) -> None:
    add.add_argument("--hosts", type=_hosts, required=True, metavar="N", help="simulated hosts, two or more")
    add.add_argument("--ranks", type=count, default=8, metavar="N", help="ranks of each host (8)")
    what = add.add_mutually_exclusive_group()
    what.add_argument("--names", type=count, default=161, metavar="N", help="tensors of a step (161)")
    what.add_argument("--profile", metavar="FILE", help="tensors and their times, as horovodrun --profile has written")
    add.add_argument("--bytes", type=_bytes, metavar="N", help="bytes of each of --names (635000)")
    add.add_argument("--steps", type=count, default=2, metavar="N", help="steps; the first one has no known names (2)")
    add.add_argument("--shuffled", action="store_true", help="each rank has an order and a pace of its own")
    add.add_argument("--seed", type=_seed, default=1, metavar="N", help="chooses every chance: one seed, one run (1)")
    add.add_argument("--seeds", type=count, default=1, metavar="N", help="run this many seeds, from --seed on (1)")
    add.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND:TARGET:AMOUNT@STEP",
        help=f"what befalls the job, may be repeated: {', '.join(run.KINDS)}",
    )
    network = add.add_mutually_exclusive_group()
    network.add_argument("--link", metavar="LINK", help=f"the network between hosts: {', '.join(PRESETS)}, or a file")
    network.add_argument("--gbit", type=gbit, default=10.0, metavar="N", help="in place of --link: its rate (10)")
    add.add_argument("--latency-us", type=_us, metavar="US", help="of a message, with --gbit (30)")
    add.add_argument(
        "--message-us", type=_us, metavar="US", help="processor time of a message at either end, with --gbit (3)"
    )
    add.add_argument("--relays-above-hosts", type=count, default=256, metavar="N", help="more hosts form a tree (256)")
    add.add_argument("--json", metavar="FILE", help="write all counts")
    add.add_argument("--trace", metavar="FILE", help="of up to 64 ranks, what each did when, for Perfetto")
    add.add_argument("--plant", type=int, default=0, help=argparse.SUPPRESS)  # a defect, for tests of the checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a file cannot be read or written, or does not fit the arguments, or a run failed."""
    options = parser().parse_args(arguments)
    options.given = sys.argv[1:] if arguments is None else arguments
    try:
        _check_files(options)
        if options.command == "run":
            return _run(options)
        tell(_published(options) if options.command == "published" else _forecast(options), sys.stdout)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader takes only the beginning, as `head` does
        return 0
    except InputError as error:
        tell(f"horovod.simulate: {error}")
        return 1
    except OSError as error:
        tell(f"horovod.simulate: cannot write {error.filename or 'the output'}: {error.strerror}")
        return 1
    return 0


def _check_files(options: argparse.Namespace) -> None:
    named: dict[str, str] = {}
    for flag in ("profile", "link", "html", "json", "trace"):
        path = getattr(options, flag, None)
        if not isinstance(path, str):
            continue
        check_file_name(flag, path)
        other = named.setdefault(os.path.realpath(path), flag)
        if other != flag and flag != "link":  # those behind it are written
            raise InputError(f"{path} is given twice, as {other} and as {flag}\nhint: give another file")
        if flag in ("html", "json", "trace"):  # before the work: it may take minutes
            check_writable(path)


def _published(options: argparse.Namespace) -> str:
    checks = published.checked()
    return json.dumps(published.as_json(checks), indent=1) if options.json else published.as_text(checks)


def _run(options: argparse.Namespace) -> int:
    found, went_well = run.simulate(options)
    spans = found["run"].pop("spans", [])
    if options.trace is not None:
        write_whole(options.trace, json.dumps(run.trace_of(spans, options.ranks)))
    if options.json is not None:
        write_whole(options.json, json.dumps(found, indent=1))
    tell(run.as_text(found), sys.stdout)
    return 0 if went_well else 1


def _forecast(options: argparse.Namespace) -> str:
    made = forecast(_job(options))
    if options.html is not None:
        write_whole(options.html, page(made))
    if options.json:
        return json.dumps(report.as_json(made), indent=1)
    return report.as_text(made) + (f"\n\nthe page is {options.html}" if options.html is not None else "")


def _job(options: argparse.Namespace) -> Job:
    profile = _profile(options)
    ranks_a_host = options.ranks_a_host or profile.busy_ranks
    fewest = options.hosts[0] * ranks_a_host
    if fewest < profile.busy_ranks:
        raise InputError(
            f"--hosts {options.hosts[0]} with --ranks-a-host {ranks_a_host} is {counted(fewest, 'rank')}, fewer than "
            f"the {profile.busy_ranks} of the profile\nhint: --ranks-a-host {profile.busy_ranks}"
        )
    device = options.device or profile.device
    return Job(
        profile.work,
        link_of(options.link),
        options.hosts,
        ranks_a_host,
        options.inside or ("memory" if device == "cpu" else "pcie"),
        "direct" if device == "cpu" else "nccl",
        options.batch,
        _calibration(options.calibrate, ranks_a_host),
        profile.halves,
        profile.busy_ranks,
        profile.sparse,
        profile.core_wait,
    )


def _calibration(measured: Sequence[tuple[int, float]], ranks_a_host: int) -> tuple[tuple[int, float], ...]:
    known = [hosts for hosts, _ in measured]
    if ranks_a_host == 1 and 1 in known:
        raise InputError("--calibrate 1: one rank on one host is 100%\nhint: measure two hosts")
    for hosts in known:
        if known.count(hosts) > 1:
            raise InputError(f"--calibrate {hosts}: given twice\nhint: give one efficiency, such as the median")
    return tuple(sorted(measured))


def _profile(options: argparse.Namespace) -> Profile:
    if (options.profile is None) == (options.model is None):
        raise InputError(
            "expected a profile or --model, one of them\nhint: horovodrun -np 1 --profile FILE records one"
        )
    if options.profile is not None:
        if options.step_ms is not None:
            raise InputError("--step-ms is for --model: a profile has its own steps")
        return read_profile(options.profile)
    if options.step_ms is None:
        raise InputError("--model needs --step-ms, the time of a step on one rank, in milliseconds")
    return Profile(of_model(options.model, 1e-3 * options.step_ms), "gpu", 1, False)


def _step_ms(text: str) -> float:
    return number(text, 1e-3, 1e9)


def _us(text: str) -> float:
    return number(text, 1e-3, 1e6)


def _bytes(text: str) -> int:
    if not text.isdecimal() or not 4 <= int(text) <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 4 to {_MOST_BYTES}")
    return int(text)


def _hosts(text: str) -> int:
    if count(text) == 1:
        raise argparse.ArgumentTypeError("'1': expected two hosts or more: nothing is simulated inside of one")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to 2^63 - 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(count(part) for part in text.split(","))
    if sorted(set(counts)) != list(counts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers that grow, such as 1,2,4")
    return counts


def _measured(text: str) -> list[tuple[int, float]]:
    found = []
    for part in text.split(","):
        hosts, _, percent = part.strip().partition(":")
        try:
            known, value = count(hosts), number(percent.removesuffix("%"), 1, 200)
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{part!r}: expected HOSTS:PERCENT, such as 2:91.9, from 1 to 200"
            ) from None
        found.append((known, value / 100))
    return found


if __name__ == "__main__":
    sys.exit(main())
