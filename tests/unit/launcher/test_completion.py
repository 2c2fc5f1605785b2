# SPDX-License-Identifier: Apache-2.0
"""The completion of horovodrun for bash, as bash runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT

COMPLETION = ROOT / "share/bash-completion/completions/horovodrun"
ASK = 'source "$1"; shift; COMP_WORDS=(horovodrun "$@"); COMP_CWORD=$#; _horovodrun; printf "%s\\n" "${COMPREPLY[@]}"'


def completed(*words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(COMPLETION), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--host-d"], ["--host-discovery-script"]),
        (["-np", "2", "--start-with", "b"], ["blaunch"]),
        (["--explain", "dead"], ["deadlock"]),
        (["--blacklist-cooldown-range", "1", "2", "--min-n"], ["--min-np", "--min-num-proc"]),
        (["--verbose", "horovodru"], ["horovodrun"]),  # the command
        (["--config-file", str(COMPLETION.parent / "hor")], [str(COMPLETION)]),
    ],
)
def test_a_flag_a_choice_a_file_and_the_command_are_completed(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    assert list(dict.fromkeys(completed(*words))) == expected  # a command is listed once for each folder of PATH


def test_words_behind_the_command_are_not_flags_of_horovodrun() -> None:
    assert "--min-np" not in completed("-np", "2", "python", "--min")


def test_the_manual_and_the_completions_are_installed() -> None:
    for file in ("man/man1/horovodrun.1", "bash-completion/completions/horovodrun", "zsh/site-functions/_horovodrun"):
        assert (Path(sys.prefix) / "share" / file).read_text() == (ROOT / "share" / file).read_text()
