# SPDX-License-Identifier: Apache-2.0
"""What runs on each host of a job: the agent that starts its ranks, and what it needs to know of the host."""
