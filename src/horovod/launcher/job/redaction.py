# SPDX-License-Identifier: Apache-2.0
"""Removes from a report what looks secret: by the name of a variable or flag, or by the look of a value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.world.files.whole import named, open_in_place, replacement

__all__ = ["REMOVED", "Redaction"]

REMOVED = "(removed)"
_NAME = re.compile(
    r"secret|token|passw|passphrase|passwd|credential|api.?key|access.?key|private|auth|cookie|session|signature|jwt"
    r"|bearer|webhook|dsn|(?:^|[_-])(?:key|pat|pw|pwd)$",
    re.IGNORECASE,
)
# Of well-known services, and a private key or a signed claim of any.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA|AIza|npm_|pypi-|dop_v1_|wandb_)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)",
    re.DOTALL,
)
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_RANDOM = re.compile(r"[0-9a-fA-F]{32,}|(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9+=_-][A-Za-z0-9+/=_-]{23,}")
_SHORTEST = 6  # of a secret that is looked for in texts


class Redaction:
    """Remembers what it has removed, so that this can be removed from other texts as well."""

    def __init__(self, *secrets: str) -> None:
        """`secrets`: that are known to be such."""
        self._removed = {secret for secret in secrets if secret}

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables, sorted, with secret values replaced."""
        kept = {name: self._value(name, value) for name, value in sorted(variables.items())}
        return {name: self.text(value) for name, value in kept.items()}

    def words(self, command: Sequence[str]) -> list[str]:
        """A command line: the values of flags and assignments with secret names, and words that look secret."""
        kept: list[str] = []
        for number, word in enumerate(command):
            name, equals, value = word.partition("=")
            before = command[number - 1] if number else ""
            if before.startswith("-") and "=" not in before and not word.startswith("-"):
                kept.append(self._value(before, word))
            elif equals:
                kept.append(f"{name}={self._value(name, value)}")
            else:
                kept.append(self._value("", word))
        return [self.text(word) for word in kept]

    def text(self, text: str) -> str:
        """Any text: without what was removed elsewhere, tokens, and passwords in addresses."""
        for secret in sorted(self._removed, key=len, reverse=True):
            text = text.replace(secret, REMOVED)
        return _IN_URL.sub(REMOVED, _TOKEN.sub(REMOVED, text))

    def file(self, path: Path) -> None:
        """Rewrites a file line by line if it holds a secret. Raises OSError."""
        with open(path, "rb", opener=open_in_place) as source:
            if all(self._line(line) == line for line in source):
                return
            source.seek(0)
            with replacement(path) as redacted, named(path), open(redacted, "wb") as target:
                target.writelines(map(self._line, source))

    def _line(self, line: bytes) -> bytes:
        return self.text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _value(self, name: str, value: str) -> str:
        if not value or not (_NAME.search(name) or _RANDOM.fullmatch(value)):
            return value
        if name == "PWD" and os.path.isabs(value):  # the shell's working folder
            return value
        # A path is not a secret, and texts without it, such as tracebacks, could not be read.
        if len(value) >= _SHORTEST and not (os.path.isabs(value) and os.path.exists(value)):
            self._removed.add(value)
        return REMOVED
