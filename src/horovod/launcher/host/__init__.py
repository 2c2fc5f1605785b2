# SPDX-License-Identifier: Apache-2.0
"""The part that runs on each host of a job: the agent that starts its ranks, and its knowledge of the host."""
