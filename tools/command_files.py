# SPDX-License-Identifier: Apache-2.0
"""The manual page of horovodrun and its completion for bash and zsh, from the flags of --help. See tools/pages."""

import argparse
import re
from collections.abc import Iterator

from horovod.launcher.options.explanations import EXPLANATIONS
from horovod.launcher.options.flags import parser as make_parser


def manual() -> str:
    parser = make_parser()
    lines = [
        '.\\" Written by tools/pages.',
        ".TH HOROVODRUN 1",
        ".SH NAME",
        "horovodrun \\- start a training script in many processes",
        ".SH SYNOPSIS",
        ".B horovodrun",
        "\\-np N [options] COMMAND [ARGUMENT ...]",
        ".SH DESCRIPTION",
        _troff(parser.description or ""),
    ]
    for title, actions in groups(parser):
        lines.append(f".SH {_troff(title.upper())}")
        for action in actions:
            names = ", ".join(f"\\fB{_troff(name)}\\fR" for name in action.option_strings)
            lines += [".TP", " ".join([names, *(f"\\fI{_troff(value)}\\fR" for value in values_of(action))])]
            lines.append(_troff((action.help or "") % {"prog": parser.prog}))
    lines += [
        ".SH EXIT STATUS",
        "0 if all ranks have ended with 0; else that of the first rank that failed, or 128 plus its signal's number.",
        ".SH EXAMPLE",
        ".nf",
        "horovodrun \\-np 2 python train.py \\-\\-epochs 3",
        "horovodrun \\-np 8 \\-H host1:4,host2:4 python train.py",
        ".fi",
    ]
    return "\n".join(lines) + "\n"


def for_bash() -> str:
    actions = [action for _, group in groups(make_parser()) for action in group]
    flags = " ".join(name for action in actions for name in action.option_strings)
    cases = [f'    {_pattern(action)}) COMPREPLY=($(compgen -W "{" ".join(_choices(action))}" -- "$word")); return ;;'
             for action in actions if _choices(action)]  # fmt: skip
    taking = "|".join(_pattern(action) for action in actions if values_of(action))
    taking_two = "|".join(_pattern(action) for action in actions if len(values_of(action)) == 2)
    return f"""\
# Completion of horovodrun for bash. Written by tools/pages.
_horovodrun() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} at=1
  # The command begins at the first word that is neither a flag nor a flag's value; it completes itself.
  while ((at < COMP_CWORD)) && [[ ${{COMP_WORDS[at]}} == -* ]]; do
    case ${{COMP_WORDS[at]}} in
      {taking_two}) ((at += 3)) ;;
      {taking}) ((at += 2)) ;;
      *) ((at += 1)) ;;
    esac
  done
  if ((at < COMP_CWORD)); then
    if declare -F _command_offset >/dev/null; then _command_offset $at; else COMPREPLY=($(compgen -f -- "$word")); fi
    return
  fi
  case $before in
{chr(10).join(cases)}
    {taking}) COMPREPLY=($(compgen -f -- "$word")); return ;;
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "{flags}" -- "$word"))
  else
    COMPREPLY=($(compgen -c -f -- "$word"))
  fi
}}
complete -F _horovodrun horovodrun
"""


def for_zsh() -> str:
    lines = ["#compdef horovodrun", "# Completion of horovodrun for zsh. Written by tools/pages.", "_arguments -S \\"]
    for _, actions in groups(make_parser()):
        for action in actions:
            what = re.sub(r"([\[\]:'`\\])", r"", " ".join((action.help or "").split()))
            values = "".join(f":{value}:({' '.join(_choices(action))})" if _choices(action) else f":{value}:_files"
                             for value in values_of(action))  # fmt: skip
            if action.nargs == "?" and _choices(action):
                values = f"::{action.metavar}:({' '.join(_choices(action))})"
            lines += [f"  '{name}[{what}]{values}' \\" for name in action.option_strings]
    return "\n".join(lines) + "\n  '*::command:_normal'\n"


def groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """The groups of --help with the flags that it shows."""
    for group in parser._action_groups:  # noqa: SLF001
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]  # noqa: SLF001
        if shown:
            yield group.title or "options", shown


def values_of(action: argparse.Action) -> list[str]:
    """The names of the words behind a flag."""
    if action.nargs in (0, "?"):
        return []
    names = action.metavar or (action.choices and "{" + ",".join(map(str, action.choices)) + "}") or action.dest.upper()
    return list(names) if isinstance(names, tuple) else [str(names)]


def _choices(action: argparse.Action) -> list[str]:
    if "--explain" in action.option_strings:
        return [one.code for one in EXPLANATIONS]
    if action.choices:
        return [str(choice) for choice in action.choices]
    found = re.fullmatch(r"\{(.*)\}", str(action.metavar or ""))
    return found[1].split(",") if found else []


def _pattern(action: argparse.Action) -> str:
    return "|".join(action.option_strings)


def _troff(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
