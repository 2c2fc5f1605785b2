# SPDX-License-Identifier: Apache-2.0
"""horovodrun: the command line. Reads it, checks what can be checked before anything is started, and runs the job."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horovod import __version__
from horovod.core.wording import plain, tell
from horovod.launcher.external import ExternalCommand, external_command
from horovod.launcher.host import processes
from horovod.launcher.job import supervise
from horovod.launcher.job.spec import ElasticPlan, Job
from horovod.launcher.job.supervision import Conclusion, Keep
from horovod.launcher.job.terminal import discard
from horovod.launcher.options import checks, explanations
from horovod.launcher.options.config_file import ConfigFile, read_config_file
from horovod.launcher.options.flags import is_elastic, parse
from horovod.launcher.options.host_list import HostList, choose_hosts
from horovod.launcher.options.hosts import HostsError, RankIdentity, assign_ranks, is_local
from horovod.launcher.options.room import NoRoomError, check_room
from horovod.launcher.options.usage import UsageError
from horovod.launcher.placement import PlacementOptions
from horovod.launcher.watch.command import COMMANDS, look
from horovod.settings import SettingError, Settings, current_environment, environment_of, rows
from horovod.settings.without_effect import notes, variables_without_effect

__all__ = ["check", "main"]

_ERRORS = (UsageError, HostsError, NoRoomError, SettingError)


def main(
    arguments: Sequence[str] | None = None,
    secret: bytes | None = None,
    keep: Keep = lambda _: None,
) -> int:
    """The console script: returns the exit code of the job, 2 for a command line that cannot be run.

    `secret`: the job's, if the caller has to know it. `keep` gets how the job ends, or why it does not begin.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return _look(arguments)
    processes.take_signals()
    _occupy_standard_streams()
    environment = current_environment()
    try:
        options = parse(arguments)
        if options.version:
            return _answer(__version__)
        if options.check_build:
            from horovod.launcher.options.check_build import check_build

            return _answer(check_build())
        if options.explain is not None:
            return _answer(_explanation(options.explain))
        if options.drill:
            return _drill(options, arguments, environment)
        plan = _Plan(options, environment)
        ready = plan.ready()
    except BrokenPipeError:  # of --help: argparse of older Pythons lets it out
        discard(sys.stdout)
        return 0
    except _ERRORS as error:
        return _refused(error, keep)
    for note in plan.without_effect():
        tell(f"horovodrun: {note}")
    if isinstance(ready, ExternalCommand):
        return _become(ready, plan.said_of_hosts[:1] if options.verbose else None)
    try:
        if ready.report is not None:
            from horovod.launcher.job import report  # other jobs start earlier without it

            code = report.run(ready.report, ready, sys.argv[1:] if arguments is None else arguments, secret, keep)
        else:
            code = supervise.run(ready, secret, keep)
        if code == 0 and (note := plan.note_of_profile()):
            tell(f"horovodrun: warning: {note}")
        return code
    except UsageError as error:
        return _refused(error, keep)


def _look(arguments: Sequence[str]) -> int:
    try:
        text, code = look(arguments)
        return _answer(text) if text else code
    except UsageError as error:
        return _refused(error, lambda _: None)


def _drill(options: argparse.Namespace, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Checks the flags as for a job; each drill is one, with the same flags."""
    if options.command:
        raise UsageError(
            f"--drill runs jobs of its own, got a command: {options.command[0]}\nhint: leave the command out"
        )
    if options.only_rank is not None:
        raise UsageError("--drill needs the lines of all ranks\nhint: leave --only-rank out")
    options.command = [sys.executable]
    job = _Plan(options, environment).ready()
    if not isinstance(job, Job) or job.elastic is not None:
        raise UsageError(
            "--drill starts ranks itself, some of them in an elastic job of its own\n"
            "hint: leave --mpi, --jsrun and the flags of elastic jobs out"
        )
    if len(job.ranks) < 2:
        raise UsageError("--drill with one rank: one cannot lose another\nhint: horovodrun --drill -np 2")
    from horovod.launcher.drill.run import run  # loads numpy

    return run([one for one in arguments if one != "--drill"], [rank.hostname for rank in job.ranks])


def _refused(error: Exception, keep: Keep) -> int:
    tell(f"horovodrun: {error}")
    keep(Conclusion(plain(f"horovodrun: {error}")))
    return error.exit_code if isinstance(error, UsageError) else 2


def check(arguments: Sequence[str]) -> Job | ExternalCommand:
    """Parses a command line into the job that main() runs. Raises ValueError with the text of main()'s error."""
    try:
        return _Plan(parse(arguments), current_environment()).ready()
    except _ERRORS as error:
        raise ValueError(str(error)) from None


def _answer(text: str) -> int:
    """Prints what was asked for. A reader that takes only the beginning, as `head` does, is not an error."""
    try:
        tell(text, sys.stdout)
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise UsageError(f"cannot print: {error.strerror or error}", 1) from None
    return 0


def _explanation(code: str) -> str:
    if not code:
        return f"{explanations.list_of_codes()}\n\npages: {', '.join(explanations.pages())}"
    if page := explanations.pages().get(code):
        return page.read_text(encoding="utf-8").strip()
    try:
        return explanations.explain(code)
    except KeyError:
        known = [*(one.code for one in explanations.EXPLANATIONS), *explanations.pages()]
        nearest = difflib.get_close_matches(code, known, 1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        hint += "`horovodrun --explain` lists all codes and pages"
        raise UsageError(f"there is no code and no page {code!r}\nhint: {hint}") from None


def _occupy_standard_streams() -> None:
    """A daemon may start us with stdout or stderr closed: what is opened next would get their numbers."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _become(external: ExternalCommand, said: Sequence[str] | None) -> int:
    """mpirun takes this process over: its signals, its output and its exit code are mpirun's own.

    `said`: what --verbose says first; None without it.
    """
    for text in () if said is None else (*said, external.shown()):
        tell(f"horovodrun: {text}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(external.command[0], external.command, external.environment)


class _Plan:
    """The flags with the configuration file and the environment behind them."""

    def __init__(self, options: argparse.Namespace, environment: dict[str, str]) -> None:
        """Raises UsageError or SettingError."""
        self._options = options
        self._environment = environment
        self._file = read_config_file(options.config_file) if options.config_file else ConfigFile()
        flags = {row.keyword: getattr(options, row.keyword) for row in rows() if row.flag is not None}
        self._given: dict[str, Any] = {
            **self._file.settings,
            **{keyword: value for keyword, value in flags.items() if value is not None},
        }
        self._settings = dataclasses.replace(Settings.from_environment(environment), **self._given)
        self._controller = self._chosen_controller()
        self.said_of_hosts: tuple[str, ...] = ()  # by --verbose, once `ready`
        self._report: Path | None = None
        self._profile_before: int | None = None

    def without_effect(self) -> list[str]:
        """The given options that do nothing, a line for each reason."""
        options = self._options
        given = [*options.without_effect, *self._file.without_effect]
        if self._controller == "gloo":
            given += variables_without_effect(self._environment)  # else rank 0 says it in init
            why = "these are for mpirun and jsrun, which --mpi and --jsrun choose"
            flags = (("--mpi-args", options.mpi_args), ("--binding-args", options.binding_args))
            given += [(flag, why) for flag, value in flags if value is not None]
        else:
            program = "mpirun" if self._controller == "mpi" else "jsrun"
            why = f"with --{self._controller}, {program} prints the ranks' output"
            given += [("--no-prefix", why)] if options.no_prefix else []
            given += [("--only-rank", why)] if options.only_rank is not None else []
            then = f"with --{self._controller}, {program} runs the job: `horovodrun top` in another terminal shows it"
            given += [("--top", then)] if options.top else []
            given += [("--summary", then)] if options.summary else []
        if options.host_discovery_script is not None:
            flags = (("-H", options.hosts), ("--hostfile", options.hostfile))
            given += [(flag, "--host-discovery-script lists the hosts") for flag, value in flags if value is not None]
        elif options.min_np is None and options.elastic_timeout_s is not None:
            given.append(("--elastic-timeout", "this job is not elastic; --min-np makes it so"))
        return notes(given)

    def ready(self) -> Job | ExternalCommand:
        """Everything that can be known to be wrong before a process is started is said here."""
        options, settings = self._options, self._settings
        if unsupported := settings.unsupported():
            raise UsageError(unsupported)
        if not options.command:
            raise UsageError("there is no command to run\nhint: horovodrun -np 2 python train.py")
        directory = checks.working_directory()
        elastic = is_elastic(options)
        if elastic and self._controller != "gloo":
            raise UsageError(
                f"--{self._controller} starts all processes at once and cannot replace one; in elastic jobs "
                "horovodrun must start them itself\nhint: leave the flag out"
            )
        hosts = None if options.host_discovery_script else choose_hosts(options, self._environment)
        self.said_of_hosts = _words(hosts) if hosts else (f"hosts from {options.host_discovery_script}",)
        if self._controller == "gloo":
            checks.check_no_mpi(settings.controller, settings.cpu_operations)
            check_room(hosts.here() if hosts else 0)
            checks.check_is_reachable([host.name for host in hosts.hosts] if hosts else [], settings.network_interface)
        checks.check_interface(settings.network_interface)
        checks.check_identity_file(options.ssh_identity_file)
        if elastic:
            checks.check_not_by_mpi(settings.transport)
        checks.check_transport(settings.transport)
        checks.check_command(options.command[0], {**self._environment, **options.assigned})
        checks.check_file_name("--profile", self._given.get("profile"))
        checks.check_files_differ(self._files_read(), self._files_written())
        checks.check_timeline(settings.timeline)
        if settings.profile:
            ranks = assign_ranks(hosts.hosts, hosts.size) if hosts else []
            checks.check_profile(settings.profile, [rank.hostname for rank in ranks], elastic)
            self._profile_before = _changed(settings.profile)
        self._report = self._folder_of_report()
        if elastic:
            from horovod.launcher.options.elastic_plan import elastic_plan  # other jobs start earlier without it

            return self._elastic_job(elastic_plan(options, settings, hosts), hosts, directory)
        assert hosts is not None
        if self._controller == "gloo":
            return self._job(hosts, directory)
        if options.assigned:
            options.command = [
                "env",
                *(f"{name}={value}" for name, value in options.assigned.items()),
                *options.command,
            ]
        return external_command(self._controller, options, hosts, self._job_environment(), settings.network_interface)

    def note_of_profile(self) -> str:
        """Empty, unless the job has ended well and left no profile that was asked for."""
        path = self._settings.profile
        if not path or _changed(path) != self._profile_before:
            return ""
        return (
            f"no profile was written to {path}\n"
            "hint: rank 0 says why, above; if it says nothing, it has recorded no gradient"
        )

    def _files_read(self) -> dict[str, str | None]:
        options = self._options
        return {
            "--config-file": options.config_file,
            "--hostfile": options.hostfile,
            "--host-discovery-script": options.host_discovery_script,
            "--ssh-identity-file": options.ssh_identity_file,
        }

    def _files_written(self) -> dict[str, str | None]:
        """Those of the settings may come from the environment. Folders, too."""
        options, settings = self._options, self._settings
        return {
            "--report": options.report,
            "--output-filename": options.output_filename,
            "--timeline-filename": "" if settings.timeline.upper() == "DYNAMIC" else settings.timeline,
            "--profile": settings.profile,
        }

    def _chosen_controller(self) -> str:
        chosen = dict.fromkeys(self._options.controllers or [])
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)} were given: expected one")
        return next(iter(chosen), self._file.controller or "gloo")

    def _folder_of_report(self) -> Path | None:
        options = self._options
        checks.check_folder_name("--report", options.report)
        checks.check_folder_name("--output-filename", options.output_filename)
        if options.report is None:
            return None
        if self._controller != "gloo":
            raise UsageError(
                f"--report is not supported with --{self._controller}, which takes the place of horovodrun\n"
                f"hint: HOROVOD_REPORT={options.report} has each rank write its part"
            )
        if options.output_filename is not None:
            raise UsageError(
                "--report keeps the ranks' output, too: expected it without --output-filename\n"
                "hint: leave --output-filename out"
            )
        folder = checks.report_directory(options.report)
        self._options.output_filename = str(folder / "logs")
        self._given["report"] = str(folder)
        return folder

    def _job_environment(self) -> dict[str, str]:
        """The ranks' environment without their identity."""
        environment = {**self._environment, **environment_of(**self._given)}
        for name in environment_of(elastic=True, worker=0, joins=True):
            environment.pop(name, None)  # that of an elastic job, whose worker this job may be
        if self._options.tcp:
            environment["NCCL_IB_DISABLE"] = "1"
        if self._settings.network_interface:
            environment.setdefault("NCCL_SOCKET_IFNAME", self._settings.network_interface)
        return environment

    def _job(self, hosts: HostList, directory: str) -> Job:
        if self._options.only_rank is not None and self._options.only_rank >= hosts.size:
            raise UsageError(f"--only-rank {self._options.only_rank}: the ranks are 0 to {hosts.size - 1}")
        output = checks.output_directory(self._options.output_filename, hosts.size)
        return self._job_with(assign_ranks(hosts.hosts, hosts.size), hosts.start_with, output, directory)

    def _elastic_job(self, plan: ElasticPlan, hosts: HostList | None, directory: str) -> Job:
        options = self._options
        start_with = hosts.start_with if hosts else options.start_with or "ssh"
        output = None if options.output_filename is None else Path(options.output_filename)
        if output is not None:
            checks.make_directory(str(output))
        return dataclasses.replace(self._job_with([], start_with, output, directory), elastic=plan)

    def _job_with(self, ranks: list[RankIdentity], start_with: str, output: Path | None, directory: str) -> Job:
        options, settings = self._options, self._settings
        return Job(
            command=options.command,
            ranks=ranks,
            directory=directory,
            environment={**self._job_environment(), **options.assigned},
            assigned=options.assigned,
            placement=PlacementOptions(options.ssh_port, options.ssh_identity_file, start_with),
            start_timeout_s=settings.start_timeout_s,
            termination_grace_s=settings.termination_grace_s,
            # As the ranks notice each other.
            frozen_timeout_s=settings.lost_timeout_s if settings.pretend_hosts else settings.frozen_timeout_s,
            agent_timeout_s=settings.lost_timeout_s,
            network_interface=settings.network_interface,
            output_directory=output,
            report=self._report,
            verbose=options.verbose,
            prefix_timestamp=options.prefix_timestamp,
            prefix=not options.no_prefix,
            only_rank=options.only_rank,
            summary=options.summary,
            top=options.top,
            notes=self.said_of_hosts,
        )


def _changed(path: str) -> int | None:
    """When the file was changed last, in nanoseconds; None if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _words(hosts: HostList) -> tuple[str, ...]:
    """The notes of --verbose on the hosts."""
    listed = ",".join(f"{host.name}:{host.slots}" for host in hosts.hosts)
    notes = [f"hosts {listed}, from {hosts.origin}"]
    if not all(is_local(host.name) for host in hosts.hosts):
        notes.append(f"other hosts are reached by {hosts.start_with}")
    return tuple(notes)


if __name__ == "__main__":
    sys.exit(main())
