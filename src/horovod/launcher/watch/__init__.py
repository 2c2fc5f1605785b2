# SPDX-License-Identifier: Apache-2.0
"""Views of a running job: `horovodrun top`, `stacks` and `jobs`, and the summary at its end.

Ranks send statuses to the job's rendezvous (core/telemetry/status.py, world/statuses.py). `facts.py` makes rates of
them, `verdict.py` says which rank is slow and why, and the other files show it.
"""
