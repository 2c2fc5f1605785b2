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
        "The job needs -np slots to begin and --min-np workers to go on. It did not get enough usable slots within "
        "`--elastic-timeout`. A host whose workers failed does not count, unless it may come back.",
        (
            "`--elastic-timeout` lets the job wait longer; a smaller `--min-np` lets it go on with less.",
            "`--blacklist-cooldown-range 10 100` lets hosts whose workers have failed come back.",
            "Run the host discovery script by hand: it must print a line for each host, `name:slots`.",
        ),
    ),
    Explanation(
        "elastic-state-lost",
        "All workers that held the training state are gone",
        _LAUNCHER,
        ("every worker that held the state has ended", "the elastic job has ended: all workers have ended"),
        "An elastic job keeps its state in the memory of its workers. When the last of them ends, nothing is left to "
        "go on from. The earlier output shows how the workers ended: if all ended at the same time, the cause is most "
        "likely the script, perhaps before training began.",
        (
            "Fix what ended the workers; their own last lines come before horovodrun's.",
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
            "is no longer used ... failed there",
        ),
        "A host on which a worker has failed is no longer used. With HOROVOD_ELASTIC_BLAME=worker, this takes three "
        "failures, or one at a worker's start. The job ends when three things are true: workers have failed on every "
        "host, no host may come back, and no worker is left. If workers fail before they train, the cause is the "
        "script or the installation.",
        (
            "Read the workers' own last lines. If none got to hvd.init(), check the command, and check that the "
            "script calls hvd.init() near its beginning.",
            "`--blacklist-cooldown-range 10 100` lets hosts come back after a while.",
        ),
    ),
    Explanation(
        "elastic-reset-limit",
        "The workers of an elastic job changed too often",
        _LAUNCHER,
        ("the workers changed more often than --reset-limit",),
        "`--reset-limit` is the number of changes that are allowed; losses, joins and removals of workers all count.",
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
            "Read what the workers noticed: in the last line, and for each world before it.",
            "Look for a firewall between the hosts; `--network-interface` names the network that joins them.",
            "If links break now and then, commit more often.",
        ),
    ),
    Explanation(
        "elastic-script",
        "The script ended the job: several workers raised the same exception, or some ended and others did not",
        _LAUNCHER,
        ("raised the same exception", "the end of training"),
        "The same exception came from two workers after the same commit, or from three while they joined. A new world "
        "would only raise it again. The cause is the script, or data that cannot be read. Another cause: the training "
        "function has returned in some workers, while the others still have steps or other long work to do.",
        (
            "Fix the script; the output has the exception with its traceback.",
            "Give all workers the same number of steps, and put the work that only one worker does after the training "
            "function. HOROVOD_ELASTIC_STRAGGLER_SECONDS gives slow workers more time.",
        ),
    ),
)
