# SPDX-License-Identifier: Apache-2.0
"""`horovodrun top`: the ranks of a running job, drawn anew every two seconds.

On a terminal it is drawn by rich, if that is installed; else as text, one block after the other.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from horovod.core.wording import tell
from horovod.launcher.watch import screen
from horovod.launcher.watch.door import one_job, open_job
from horovod.launcher.watch.facts import JobFacts, facts_of
from horovod.world.channel import ChannelError

__all__ = ["top"]


def top(job_id: str | None, interval_s: float, *, once: bool = False) -> int:
    """Shows the job until it ends, or once. Returns an exit code. Raises UsageError."""
    file = one_job(job_id)
    with open_job(file) as rendezvous:
        show = _plain if once or not sys.stdout.isatty() else _shower()
        while True:
            try:
                facts = facts_of(rendezvous.statuses())
            except ChannelError:
                tell(f"job {file.id} has ended", sys.stdout)
                return 0
            show(file.id, facts)
            if once:
                return 0
            time.sleep(interval_s)


def _plain(name: str, facts: JobFacts) -> None:
    width, height = shutil.get_terminal_size((80, 40))
    tell(screen.plain(name, facts, width, height - 2) + "\n", sys.stdout)


def _shower() -> Any:
    """Draws with rich, in place."""
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        tell("horovodrun: rich is not installed, so this is not drawn in place\nhint: pip install 'hvd[top]'")
        return _plain
    console = Console()
    live = Live(console=console, auto_refresh=False, screen=False)
    live.start()

    def show(name: str, facts: JobFacts) -> None:
        said = screen.words(facts)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column, title in enumerate(screen.HEADER):
            table.add_column(title, justify="left" if column == 1 else "right", no_wrap=True)
        for row in screen.rows(facts, max(1, console.height - len(said) - 7)):
            table.add_row(*map(Text, row))  # a name of a host is not markup
        parts = [Text(screen.headline(name, facts), style="bold"), *(Text(line, style="yellow") for line in said)]
        live.update(Group(*parts, table, Text(screen.LEGEND, style="dim")), refresh=True)

    return show
