# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a Python function as a job. No step of a gradient's way: it starts the ranks, as horovodrun does.

    results = horovod.run(train, args=(0.1,), np=4)

The caller keeps the pickled function and one empty file a rank in memory (memfd), which its ranks open under /proc, as
the job's secret: nothing is left on any disk however the job ends, and no other user can read it. Ranks of other
machines get and bring the same over connections (exchange.py). Those that mpirun starts there have no secret to prove:
for them the files lie in a folder that all hosts share, for as long as the job runs.

The job runs in a separate process, `python -m horovod.launcher.function.run_function` with horovodrun's flags, because
the supervisor adopts orphans, handles signals and kills all its descendants; in the caller's process these could belong
to other code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.core import tracebacks
from horovod.launcher import cli
from horovod.launcher.external import ExternalCommand
from horovod.launcher.function.answers import answer_of, memory, read, results, those_that_count, write
from horovod.launcher.function.exchange import Exchange
from horovod.launcher.function.run_task import dumps
from horovod.launcher.host import processes
from horovod.launcher.job.spec import ElasticPlan, Job
from horovod.launcher.options.hosts import is_local
from horovod.settings import Settings
from horovod.world.files.private import NotPrivateError, private_folder
from horovod.world.interpreter import python_command
from horovod.world.network import ANY, interface_address
from horovod.world.secret import new_secret

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs func(*args, **kwargs) in `num_proc` ranks; returns the results in rank order.

    With `min_num_proc` or a host discovery script the job is elastic: the results are those of the last world's ranks,
    and only an exception that has ended the job is raised, none that it has survived.

    `np` is another name of num_proc, `executable` the Python of the ranks, the others are horovodrun's flags. The
    function calls init() itself. The ranks, also those on other hosts, have this process' working directory,
    environment and module path. Their output goes to this process' stdout and stderr.

    Blocks until the job has ended. Raises the first exception that a rank raised, caused by its traceback as text;
    RuntimeError if a rank raised what cannot be pickled, or ended without an exception: then the text has horovodrun's
    last words; TypeError for a function or arguments that cannot be pickled; ValueError for arguments with which
    horovodrun would not start. KeyboardInterrupt ends the job first.
    """
    tracebacks.install()
    if hosts is not None and hostfile is not None:
        raise ValueError("horovod.run: both hosts and hostfile were given: expected one")
    if use_gloo and use_mpi:
        raise ValueError("horovod.run: both use_gloo and use_mpi were given: expected one")
    if isinstance(network_interfaces, str) or network_interfaces is None:
        interfaces = network_interfaces or network_interface
    else:
        interfaces = ",".join(network_interfaces)
    size = num_proc if np is None else np
    options = {
        "-np": size,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--host-discovery-script": host_discovery_script,
        "--min-np": min_num_proc if min_np is None else min_np,
        "--max-np": max_num_proc if max_np is None else max_np,
        "--slots": slots,
        "--reset-limit": reset_limit,
        "--blacklist-cooldown-range": cooldown_range,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--disable-cache": bool(disable_cache),
        "--output-filename": output_filename,
        "--verbose": bool(verbose),
        "--gloo": bool(use_gloo),
        "--mpi": bool(use_mpi),
        "--mpi-args": mpi_args,
        "--network-interface": interfaces,
    }
    flags: list[str] = []
    for flag, value in options.items():
        if value is not None and value is not False:
            values = value if isinstance(value, (list, tuple)) else [value]
            flags += [flag] if value is True else [flag, *map(str, values)]
    python = executable or sys.executable
    job = cli.check([*flags, python])
    plan = job.elastic if isinstance(job, Job) else None
    places = size if plan is None else _most_workers(plan)
    call = (func, tuple(args), dict(kwargs or {}))
    parts = dict(zip(("func", "args", "kwargs"), call, strict=True))
    task = dumps({"path": sys.path, "call": dumps(call, "func", parts)}, "func")
    with contextlib.ExitStack() as stack:
        names = ["task", *(f"result-{rank}" for rank in range(places))]
        far = _has_other_hosts(job)
        paths = _shared_files(stack, names) if far and isinstance(job, ExternalCommand) else memory(stack, names)
        Path(paths[0]).write_bytes(task)
        (conclusion,) = memory(stack, ["conclusion"])
        command = python_command("horovod.launcher.function.run_task", python)
        if far and not isinstance(job, ExternalCommand):
            code = _supervised(conclusion, [job.network_interface, *paths], [*flags, *command])
        else:
            code = _supervised(conclusion, [], [*flags, *command, *paths])
        answers = [answer_of(rank, path) for rank, path in enumerate(paths[1:])]
        end = read(conclusion)
    return results(answers if plan is None else those_that_count(answers, code, end), code, end.text)


def _most_workers(plan: ElasticPlan) -> int:
    most = plan.rules.max_np or sum(slots for _, slots in plan.hosts)
    if not most:
        raise ValueError(
            "horovod.run: max_np (max_num_proc) is missing: with a host discovery script, nothing else says how many "
            "results there may be"
        )
    return most


def _has_other_hosts(job: Job | ExternalCommand) -> bool:
    names: Sequence[str]
    if isinstance(job, ExternalCommand):
        names = job.hosts
    elif job.elastic is None:
        names = [one.hostname for one in job.ranks]
    elif job.elastic.discovery is not None:
        return True  # it may list some
    else:
        names = [host for host, _ in job.elastic.hosts]
    return not all(is_local(name) for name in dict.fromkeys(names))


def _shared_files(stack: contextlib.ExitStack, names: Sequence[str]) -> list[str]:
    """Paths in a new folder, this user's alone, where the ranks of other launchers find each other, too."""
    parent = Path(Settings.from_environment().rendezvous_directory or "~/.horovod").expanduser()
    try:
        with private_folder(parent):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=parent))
    except NotPrivateError as error:
        raise ValueError(
            f"{parent}, by which the ranks get the function, is not a folder that only this user can write in ({error})"
            f"\nhint: chmod 700 {parent}, or set HOROVOD_RENDEZVOUS_DIRECTORY to a folder of this user's"
        ) from None
    return [os.path.join(folder, name) for name in names]


def _supervised(conclusion: str, exchange: list[str], arguments: list[str]) -> int:
    """Runs horovodrun with these arguments to its end; its exit code. A KeyboardInterrupt ends the job first.

    `conclusion`: the file that gets the job's. `exchange`: network interfaces and paths, for ranks of other machines
    (main).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen(
        [
            *python_command("horovod.launcher.function.run_function"),
            str(os.getpid()),
            conclusion,
            str(len(exchange)),
            *exchange,
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


def main() -> int:
    """The process that supervises the job of the caller whose id is the first argument.

    Next come the file for the job's conclusion and the number of arguments for the exchange. These are there if the job
    has ranks on other machines: the network interface, the file with the task, and a file for each rank's answer. The
    rest is horovodrun's.
    """
    # Ctrl-C reaches the caller too, which then asks for the end once; a second request would leave no grace.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(signal.SIGTERM, int(sys.argv[1]))()
    keep, count = functools.partial(write, sys.argv[2]), int(sys.argv[3])
    exchange, arguments = sys.argv[4 : 4 + count], sys.argv[4 + count :]
    if not exchange:
        return cli.main(arguments, keep=keep)
    secret = new_secret()
    interface, task, *answers = exchange
    address = interface_address(interface) if interface else ANY
    with contextlib.closing(Exchange(secret, address, task, answers)) as open_exchange:
        return cli.main([*arguments, "--port", str(open_exchange.port)], secret, keep)


if __name__ == "__main__":
    sys.exit(main())
