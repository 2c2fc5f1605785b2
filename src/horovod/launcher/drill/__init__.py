# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --drill`: tries a cluster with small jobs, before a long one has to rely on it.

run.py starts the jobs, each by horovodrun itself. rank.py is what their ranks do; links.py measures a link between two
of them, and verdicts.py judges what was measured and makes the table.
"""
