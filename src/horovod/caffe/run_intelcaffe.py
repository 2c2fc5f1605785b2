# SPDX-License-Identifier: Apache-2.0
"""The command `run_intelcaffe.sh`: Intel Caffe's script that starts a training on the hosts of a file.

It takes the script's options. Ranks are started by horovodrun; one rank on this machine is `caffe` itself. What ranks
print goes to the terminal and to a file in result-<time>/.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from horovod.caffe.errors import CaffeError, nearest
from horovod.core.wording import on_one_line, tell
from horovod.settings import current_environment
from horovod.world.files.places import make_folder
from horovod.world.files.whole import open_in_place, write_whole
from horovod.world.interpreter import python_command

__all__ = ["command_of", "main"]

# Options with their default values, and what they do.
OPTIONS = {
    "hostfile": ("", "a file of hosts, one a line"),
    "solver": ("", "the solver's prototxt (train)"),
    "weights": ("", "weights to start from"),
    "snapshot": ("", "the solver state to go on from"),
    "num_omp_threads": ("0", "OpenMP threads of a rank; 0: the host's cores, shared among its ranks"),
    "network": ("opa", "opa or tcp; with tcp, --netmask names the interface"),
    "netmask": ("", "the network interface"),
    "debug": ("off", "on: print the command and its environment"),
    "mode": ("train", "train, time, inf_time or none"),
    "benchmark": ("none", "all, qperf, mpi or none; any but none measures an allreduce over the ranks"),
    "iteration": ("50", "batches (time, inf_time)"),
    "model_file": ("", "the net's prototxt (time, inf_time)"),
    "output": ("", "the folder of the results"),
    "caffe_bin": ("", "the caffe to run, in place of this one"),
    "cpu": ("", "bdw, knl, skx, knm or clx: a part of the results' names"),
    "ppn": ("1", "ranks on each host"),
    "engine": ("", "given to caffe"),
}
# Of Intel's communication library, and of the benchmarks' programs: there is nothing that they could set here.
WITHOUT_EFFECT = (
    "num_mlsl_servers", "internal_thread_pin", "mpibench_bin", "mpibench_param", "msg_priority",
    "msg_priority_threshold", "mpi_iallreduce_algo",
)  # fmt: skip
CHOICES = {
    "network": ("opa", "tcp"),
    "mode": ("train", "time", "inf_time", "none"),
    "benchmark": ("all", "qperf", "mpi", "none"),
    "debug": ("on", "off"),
    "cpu": ("", "bdw", "knl", "skx", "knm", "clx"),
}


def usage() -> str:
    """The text of --help."""
    lines = ["usage: run_intelcaffe.sh [--hostfile FILE] [--solver FILE] [options]", "", "options:"]
    lines += [f"  --{name:<18}{text}{f' ({default})' if default else ''}" for name, (default, text) in OPTIONS.items()]
    lines += ["", f"accepted, without effect: {', '.join(f'--{name}' for name in WITHOUT_EFFECT)}"]
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options' values. Raises CaffeError."""
    found = argparse.Namespace(**{name: default for name, (default, _) in OPTIONS.items()}, ignored=[])
    words = iter(arguments)
    for word in words:
        name = word.removeprefix("--")
        if not word.startswith("--") or name not in OPTIONS and name not in WITHOUT_EFFECT:
            raise CaffeError(f"unknown option {word!r}{nearest(word, [f'--{one}' for one in OPTIONS])}")
        value = next(words, None)
        if value is None:
            raise CaffeError(f"{word} needs a value")
        if name in WITHOUT_EFFECT:
            found.ignored.append(word)
        elif value not in CHOICES.get(name, (value,)):
            raise CaffeError(f"{word}: expected one of {', '.join(filter(None, CHOICES[name]))}, got {value!r}")
        else:
            setattr(found, name, value)
    for name in ("ppn", "num_omp_threads", "iteration"):
        if not getattr(found, name).isdigit():
            raise CaffeError(f"--{name}: expected a number, got {getattr(found, name)!r}")
    if int(found.ppn) < 1:
        raise CaffeError("--ppn: expected at least 1")
    if found.network == "tcp" and not found.netmask:
        raise CaffeError("--network tcp needs --netmask, the name of the network interface")
    return found


def hosts_of(path: str) -> list[str]:
    """The hosts of the file, sorted, each once; none without a file. Raises CaffeError."""
    if not path:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CaffeError(f"--hostfile {on_one_line(path)}: cannot be read: {error}") from error
    hosts = sorted({line.split()[0] for line in lines if line.strip() and not line.startswith("#")})
    if not hosts:
        raise CaffeError(f"--hostfile {on_one_line(path)}: has no hosts")
    return hosts


def caffe_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments of the caffe command. Raises CaffeError."""
    if options.mode == "train":
        if not options.solver:
            raise CaffeError("--mode train needs --solver")
        given = {name: getattr(options, name) for name in ("solver", "weights", "snapshot", "engine")}
        command = ["train"]
    else:
        if not options.model_file:
            raise CaffeError(f"--mode {options.mode} needs --model_file")
        given = {"model": options.model_file, "iterations": options.iteration, "weights": options.weights}
        given["engine"] = options.engine
        command = ["time", "--forward_only", "--phase=TEST"] if options.mode == "inf_time" else ["time"]
    return command + [f"--{name}={value}" for name, value in given.items() if value]


def command_of(options: argparse.Namespace, program: Sequence[str]) -> list[str]:
    """The command line that runs `program` on the ranks: itself, or horovodrun."""
    hosts, ppn = hosts_of(options.hostfile), int(options.ppn)
    count = max(1, len(hosts)) * ppn
    if count == 1 and hosts in ([], ["localhost"], [os.uname().nodename]):
        return list(program)
    command = [sys.executable, "-m", "horovod.launcher", "-np", str(count)]
    if hosts:
        command += ["-H", ",".join(f"{host}:{ppn}" for host in hosts)]
    if options.netmask:
        command += ["--network-interface", options.netmask]
    return [*command, *program]


def environment_for_ranks(options: argparse.Namespace) -> dict[str, str]:
    """This process's environment, so PSM2_*, FI_* and I_MPI_* too, with the threads of a rank."""
    threads = int(options.num_omp_threads) or max(1, len(os.sched_getaffinity(0)) // int(options.ppn))
    pinned = {"KMP_AFFINITY": "granularity=fine,compact,1,0"}  # unless the user has set it
    return {**pinned, **current_environment(), "OMP_NUM_THREADS": str(threads)}


def _by_path(command: Sequence[str]) -> list[str]:
    """The command with each `python -m horovod.X` in a form that runs no file of the working directory."""
    words = list(command)
    for at in reversed([at for at, word in enumerate(words) if word == sys.executable]):
        if words[at + 1 : at + 2] == ["-m"] and words[at + 2].startswith("horovod."):
            words[at : at + 3] = python_command(words[at + 2])
    return words


def run(command: Sequence[str], environment: dict[str, str], log: Path) -> int:
    """Runs the command; shows and keeps what it prints."""
    with (
        open(log, "ab", opener=open_in_place) as file,
        subprocess.Popen(
            _by_path(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            for stream in (sys.stdout.buffer, file):
                stream.write(line)
                stream.flush()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _main(options: argparse.Namespace) -> int:
    if options.ignored:
        tell(f"without effect: {', '.join(options.ignored)}")
    caffe = [options.caffe_bin] if options.caffe_bin else [sys.executable, "-m", "horovod.caffe"]
    commands = []
    if options.benchmark != "none":
        commands.append(command_of(options, [sys.executable, "-m", "horovod.bench", "allreduce", "--no-gloo"]))
    if options.mode != "none":
        program = [*caffe, *caffe_arguments(options)]
        # Timing is one process's work, as in Intel's script.
        commands.append(command_of(options, program) if options.mode == "train" else program)
    folder = Path(options.output or ".") / f"result-{time.strftime('%Y%m%d%H%M%S')}"
    make_folder(folder)
    hosts = hosts_of(options.hostfile) or [os.uname().nodename]
    name = f"{options.cpu or 'cpu'}-{len(hosts)}.txt"
    write_whole(folder / f"nodeconfig-{name}", "\n".join(hosts) + "\n")
    environment = environment_for_ranks(options)
    for command in commands:
        if options.debug == "on":
            tell(f"OMP_NUM_THREADS={environment['OMP_NUM_THREADS']} {shlex.join(command)}")
        status = run(command, environment, folder / f"outputCluster-{name}")
        if status:
            return status
    tell(f"Result folder: {folder}", sys.stdout)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) < 2 or "--help" in given:
        print(usage())
        return 0
    try:
        return _main(parse(given))
    except (CaffeError, OSError) as error:
        tell(f"run_intelcaffe.sh: {error}\n{usage()}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
