# SPDX-License-Identifier: Apache-2.0
"""Each command of a page has a test that runs it, or a reason; its flags, modules, extras and targets exist."""

from __future__ import annotations

import re

import pytest
from support.page_commands import Command, commands, where_it_runs
from support.pages import PAGES, ROOT

from horovod.launcher.options import flags
from horovod.launcher.options.usage import UsageError

ALL = commands()


def test_the_commands_of_pages_are_found() -> None:
    assert len(ALL) > 60
    assert Command("docs/install.md", "horovodrun --check-build") in ALL
    assert Command("README.md", "horovodrun -np 2 python train.py") in ALL  # behind a variable


@pytest.mark.parametrize("command", ALL, ids=lambda command: f"{command.page}: {command.text}"[:70])
def test_a_command_is_run_by_a_test_or_has_a_reason(command: Command) -> None:
    where = where_it_runs(command)
    assert where.startswith("not run: ") or (where and (ROOT / where).exists()), f"{command}: {where or 'no row'}"


@pytest.mark.parametrize("command", [one for one in ALL if "horovodrun" in one.words])
def test_horovodrun_knows_the_flags_of_a_command(command: Command) -> None:
    options = flags.parse(command.words[command.words.index("horovodrun") + 1 :])
    assert options.command or options.check_build or options.drill, command


def test_a_flag_that_is_not_there_is_found() -> None:
    with pytest.raises(UsageError):
        flags.parse(["--log-hide-timestamp", "--no-such-flag", "python"])


def test_modules_extras_targets_and_tools_of_commands_exist() -> None:
    extras = set(re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    for command in ALL:
        for module in re.findall(r"-m (horovod[\w.]*)", command.text):
            path = ROOT / "src" / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), command
        for names in re.findall(r"(?:\.|hvd|whl\)\")\[([a-z,-]+)\]", command.text):
            assert set(names.split(",")) <= extras, command
        if command.text.startswith("make "):
            assert re.search(rf"^{command.words[1]}:", makefile, re.MULTILINE), command


def test_flags_in_texts_exist() -> None:
    """`--flag` in backquotes, of horovodrun or of a program that is named beside it."""
    known = {name for action in flags.parser()._actions for name in action.option_strings}  # noqa: SLF001
    told = {(page.name, flag) for page in PAGES for flag in re.findall(r"`horovodrun (--[a-z-]+)", page.read_text())}
    assert len(told) > 5 and {pair for pair in told if pair[1] not in known} == set()
