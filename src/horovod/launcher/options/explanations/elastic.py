# SPDX-License-Identifier: Apache-2.0
"""How elastic jobs end other than with success: a part of the table in table.py."""

from __future__ import annotations

from horovod.launcher.options.explanations.jobs import Explanation

__all__ = ["EXPLANATIONS_OF_ELASTIC"]

_LAUNCHER = "the last lines of horovodrun"

EXPLANATIONS_OF_ELASTIC = (
    Explanation(
        "elastic-too-few-slots",
        "An elastic job waited too long for hosts",
        _LAUNCHER,
        ("the elastic job has ended: it waited too long for",),
        "The job needs -np workers to begin and --min-np to go on. It did not have that many usable slots before "
        "its time limit. A host whose workers failed does not count, unless it may come back.",
        (
            "`--elastic-timeout` lets the job wait longer; a smaller `--min-np` lets it go on with less.",
            "`--blacklist-cooldown-range 10 100` lets hosts come back whose workers have failed.",
            "Run the host discovery script by hand: it must print a line for each host, `name:slots`.",
        ),
    ),
    Explanation(
        "elastic-state-lost",
        "All workers that held the training state are gone",
        _LAUNCHER,
        ("every worker that held the state has ended", "the elastic job has ended: all workers have ended"),
        "An elastic job keeps its state in the memory of its workers. When the last of them ends, nothing is left to "
        "go on from. Read above how the workers ended: if all of them did at once, it was most likely the script, "
        "perhaps before its training began.",
        (
            "Fix what ended the workers; their own last lines are above.",
            "HOROVOD_ELASTIC_STATE_LOSS=restart lets new workers train from the start, or from a checkpoint that the "
            "script loads.",
        ),
    ),
    Explanation(
        "elastic-no-host-left",
        "Workers have failed on every host of an elastic job",
        _LAUNCHER,
        (
            "workers have failed on every host",
            "no worker has got to hvd.init()",
            "is no longer used: ... failed there",
        ),
        "A host on which workers have failed is no longer used. The job ends when three things are true: workers have "
        "failed on every host, no host may come back, and no worker is left. If workers fail before they train, the "
        "cause is the script or the installation.",
        (
            "Read the workers' own last lines, further up. If none got to hvd.init(), look at the command, at the "
            "script's first lines, and whether it calls hvd.init().",
            "`--blacklist-cooldown-range 10 100` lets hosts come back after a while.",
        ),
    ),
    Explanation(
        "elastic-reset-limit",
        "The workers of an elastic job changed too often",
        _LAUNCHER,
        ("the workers changed more often than --reset-limit",),
        "`--reset-limit` says how often the workers may change, by losses, joins and removals together.",
        ("Look for what ends the workers again and again, or raise the limit.",),
    ),
    Explanation(
        "elastic-no-world",
        "The workers of an elastic job cannot work together",
        _LAUNCHER,
        ("worlds in a row broke before a commit",),
        "Three worlds in a row broke before their first commit. No worker had ended, and no host had changed, so the "
        "next world would break, too: an operation fails in each world, or connections break.",
        (
            "Read what the workers noticed: in the last line, and for each world further up.",
            "Look for a firewall between the hosts; `--network-interface` names the network that joins them.",
            "If links break now and then, commit more often.",
        ),
    ),
    Explanation(
        "elastic-script",
        "The script ended the job: several workers raised the same exception, or some ended and others did not",
        _LAUNCHER,
        ("raised the same exception", "it waited too long for the end of training"),
        "The same exception came from two workers after the same commit, or from three while they joined. A new world "
        "would only raise it again. The cause is the script, or data that cannot be read. Or the training function has "
        "returned in some workers and not in others: these have more steps to do, or other work that takes long.",
        (
            "Fix the script; the exception is above, with its traceback.",
            "Give all workers the same number of steps, and do the work of one worker after the training function; "
            "HOROVOD_ELASTIC_STRAGGLER_SECONDS gives it more time.",
        ),
    ),
)
