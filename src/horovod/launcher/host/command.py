# SPDX-License-Identifier: Apache-2.0
"""The user's command, as a shell would take it: variables in front of it, and scripts without a first line `#!`."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.core.wording import on_one_line
from horovod.launcher.host import processes
from horovod.settings import current_environment
from horovod.world.interpreter import python_command

__all__ = ["as_here", "assignments", "is_one_program", "start_rank", "why_no_interpreter"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_FIRST_BYTES = 256  # of a script: the kernel reads as many for the first line


def assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables in front of a command, and the command."""
    count = next((at for at, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
    pairs = (word.partition("=") for word in words[:count])
    return {name: value for name, _, value in pairs}, list(words[count:])


def as_here(order: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """The order `start` with the environment of this host, and `own` laid over it.

    For an agent that came by itself, also with its folder and its Python (job/spec.py: Joined).
    """
    mine, names = current_environment(), order["own_environment"]
    if names is not None:
        here = {name: value for name, value in mine.items() if name in names}
        return {**order, "environment": {**order["environment"], **here, **own}}
    python, module, *arguments = order["command"]
    return {
        **order,
        "environment": {**mine, **order["environment"], **own},
        "directory": os.getcwd(),
        "command": [*python_command(module, python or sys.executable), *arguments],
    }


def is_one_program(command: Sequence[str]) -> bool:
    """True for machine code that gets options alone, like `hostname -f`: it starts nothing that could use Horovod."""
    path = _path(command[0], current_environment(), os.getcwd()) or ""
    return _beginning(path).startswith(b"\x7fELF") and all(word.startswith("-") for word in command[1:])


def why_no_interpreter(path: str) -> tuple[str, str]:
    """Why the kernel cannot run this script, which is there, and a hint; both empty if its first line is fine."""
    first = _beginning(path).partition(b"\n")[0]
    words = first[2:].decode(errors="replace").split(" ") if first.startswith(b"#!") else []
    words = [word for word in words if word]
    if not words:
        return "", ""
    if first.endswith(b"\r"):
        return (
            f"the first line of {on_one_line(path)} ends with a carriage return (CRLF, as on Windows), which would "
            "be a part of the interpreter's name",
            rf"sed -i 's/\r$//' {on_one_line(path)}",
        )
    if not os.path.exists(words[0].strip()):
        missing = on_one_line(words[0].strip())
        return f"the interpreter that {on_one_line(path)} names is not there: {missing}", "correct its first line"
    return "", ""


def start_rank(
    command: Sequence[str], environment: Mapping[str, str], directory: str, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process of a session of its own, which ends with this one, and has these descriptors.

    Raises OSError, with the reason in words.
    """
    try:
        return _start(command, environment, directory, descriptors)
    except FileNotFoundError as error:
        path = _path(command[0], environment, directory)
        why, hint = why_no_interpreter(path) if path else ("", "")
        if not why:
            raise
        raise OSError(f"{why}\nhint: {hint}") from error
    except OSError as error:
        path = _path(command[0], environment, directory)
        if error.errno != errno.ENOEXEC or path is None:
            raise
        if b"\0" in _beginning(path):
            raise OSError(f"{on_one_line(path)} is a program for another kind of machine, or is damaged") from error
        return _start(["/bin/sh", path, *command[1:]], environment, directory, descriptors)


def _start(
    command: Sequence[str], environment: Mapping[str, str], directory: str, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=descriptors,
        preexec_fn=processes.die_with_parent(),
    )


def _path(word: str, environment: Mapping[str, str], directory: str) -> str | None:
    if os.sep in word:
        return os.path.join(directory, word)
    return shutil.which(word, path=environment.get("PATH", os.defpath))


def _beginning(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_FIRST_BYTES)
    except OSError:
        return b""
